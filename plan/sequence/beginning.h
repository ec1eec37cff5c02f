// SPDX-License-Identifier: Apache-2.0
// The part of a recorded run that a plan can rely on when no step was found to repeat.
#pragma once

#include <cstddef>

#include "plan/problem.h"
#include "plan/steps/steady_state.h"

namespace stalloc::plan {

// True when the request lives through at least half of the run, as a model's weights do. `index` is its number.
// Requests that are live only because the recording stopped in the middle of a step do not count.
bool lives_through(const Problem& problem, std::size_t index);

// The run's beginning, up to where requests that live through it become rare (one in four), as a prologue; all requests
// behind it as one slot that repeats and stands for any request (SteadyState::any). A plan of these two serves the
// beginning at its planned places, holds no memory that another run might not need, and never ends. Period 0 where
// nothing would be left behind the beginning, or the problem does not repeat. O(n). Pure.
SteadyState find_beginning(const Problem& problem);

}  // namespace stalloc::plan
