// SPDX-License-Identifier: Apache-2.0
// The part of a recorded run that a plan can rely on when no step was found to repeat.
#pragma once

#include <cstddef>

#include "plan/problem.h"
#include "plan/steps/steady_state.h"

namespace stalloc::plan {

// True when the request lives through at least half of the run, as a model's weights do. `index` is its number.
// Requests that are live only because the recording stopped in the middle of a step are excluded.
bool lives_through(const Problem& problem, std::size_t index);

// Returns the run's beginning, up to where requests that live through it become rare (one in four), as the prologue,
// and one slot as the body, which stands for all later requests (SteadyState::catch_all). A plan made from it serves
// the beginning at planned places, holds no memory that another run might not need, and never ends. The period is 0 if
// there would be no requests after the beginning, or if the problem does not repeat. O(n). Pure.
SteadyState find_beginning(const Problem& problem);

}  // namespace stalloc::plan
