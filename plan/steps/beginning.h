// What can be relied upon in a recorded run in which no step was found to repeat.
#pragma once

#include <cstddef>

#include "plan/problem.h"
#include "plan/steps/steady_state.h"

namespace stalloc::plan {

// True when the request lives through at least half of the run, as a model's weights do. `index` is its number. What is
// live only because the recording stopped in the middle of a step is none of these.
bool lives_through(const Problem& problem, std::size_t index);

// The run's beginning, up to where requests that live through it become rare (one in four), as a prologue; all requests
// behind it as one slot that repeats and stands for any request (SteadyState::any). A plan of these two serves the
// beginning in its place, holds nothing that another run might not ask for, and lets it run on for ever.
// Period 0 where nothing would be left behind the beginning, or the problem does not repeat. O(n). Pure.
SteadyState find_beginning(const Problem& problem);

}  // namespace stalloc::plan
