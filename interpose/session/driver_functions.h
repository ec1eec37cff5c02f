// SPDX-License-Identifier: Apache-2.0
// The driver's own functions, for the serving half.
#pragma once

#include <optional>

#include "interpose/serve/driver/driver_real.h"
#include "interpose/session/driver_function.h"

namespace stalloc {

// Those that `find` finds. Nothing when the installed driver lacks one of them (CUDA before 12, or a device library
// without VMM); `missing` then names it.
std::optional<serve::DriverFunctions> find_driver_functions(FindDriverFunction find, const char** missing) noexcept;

}  // namespace stalloc
