// SPDX-License-Identifier: Apache-2.0
// Events in the middle of a training run, by name.
#pragma once

#include <string>
#include <vector>

#include "tests/e2e/training.h"

namespace stalloc::e2e {

// Does what `name` says. The result says how the next step is changed. Ends the program when the name is unknown, or
// something fails that must not. Some events print lines that a test compares between modes.
StepChange happen(const std::string& name, Host& host, Training& training);

// The names, for usage messages.
std::vector<std::string> event_names();

}  // namespace stalloc::e2e
