// Things that happen to training programs in the middle of a run, by name.
#pragma once

#include <string>
#include <vector>

#include "tests/e2e/training.h"

namespace stalloc::e2e {

// Does what `name` says; the step that follows is changed as the result says. Ends the program when the name is unknown
// or something goes wrong that must not. Some print a line that a test compares between modes.
StepChange happen(const std::string& name, Host& host, Training& training);

// The names, for usage messages.
std::vector<std::string> event_names();

}  // namespace stalloc::e2e
