// SPDX-License-Identifier: Apache-2.0
// A program that ends while one of its threads is in the middle of a call.
#pragma once

namespace stalloc::e2e {

// Starts a thread that allocates, and exits as soon as that thread sleeps in the driver (SIMCUDA_SLOW_MAP_US makes
// mapping slow).
[[noreturn]] void leave_while_mapping();

}  // namespace stalloc::e2e
