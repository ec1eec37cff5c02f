// SPDX-License-Identifier: Apache-2.0
// The process that the check `leaving` starts: it ends while another of its threads is inside a request.
#pragma once

#include <string>

#include "tests/conformance/driver.h"

namespace stalloc::conformance {

// Ends the process with status 7. `how` is one of the ways that the check names.
[[noreturn]] void leave_beside(const Driver& driver, const std::string& how);

}  // namespace stalloc::conformance
