// SPDX-License-Identifier: Apache-2.0
// Finds which requests of a run vary in size, if its body was found by call sites.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/problem.h"
#include "plan/steps/steady_state.h"

namespace stalloc::plan {

// Returns for each request the largest size that was seen at its place in the program, or 0 if its size does not vary.
// A request of the body varies if its repetitions differ, or if other requests of the body that are made at the same
// place in the program vary (the place is given by the call sites of the latest requests, its own last), since a few
// repetitions may be equal by chance. A request outside the repeating stretch varies if the body's requests of the same
// place vary or, if there are none, those of the same call site. `steady.sizes` must not be empty. O(n). Pure.
std::vector<std::uint64_t> find_varying(const Problem& problem, const SteadyState& steady);

}  // namespace stalloc::plan
