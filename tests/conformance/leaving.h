// The process that the check of leaving starts: it ends while another of its threads is within a request.
#pragma once

#include <string>

#include "tests/conformance/driver.h"

namespace stalloc::conformance {

// `how`: one of those that the check names. Ends with status 7.
[[noreturn]] void leave_beside(const Driver& driver, const std::string& how);

}  // namespace stalloc::conformance
