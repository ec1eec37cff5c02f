// A program that ends while one of its threads is in the middle of a call.
#pragma once

namespace stalloc::e2e {

// A thread allocates; as soon as it sleeps in the driver (SIMCUDA_SLOW_MAP_US makes mapping slow) the process exits.
[[noreturn]] void leave_while_mapping();

}  // namespace stalloc::e2e
