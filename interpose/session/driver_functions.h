// SPDX-License-Identifier: Apache-2.0
// The driver's own functions for the heaps.
#pragma once

#include <optional>

#include "interpose/serve/driver/driver_real.h"
#include "interpose/session/driver_function.h"

namespace stalloc {

// Returns the functions that `find` finds. Nothing if the installed driver lacks one of them (CUDA before 12, or a
// driver library without virtual memory management); `missing` then names it.
std::optional<serve::DriverFunctions> find_driver_functions(FindDriverFunction find, const char** missing) noexcept;

}  // namespace stalloc
