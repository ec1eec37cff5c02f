// SPDX-License-Identifier: Apache-2.0
// Which requests of a run vary in size, where its body was found by call sites.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/problem.h"
#include "plan/steps/steady_state.h"

namespace stalloc::plan {

// For each request: the largest size that was seen where it is made, or 0 where sizes do not vary. A request of the
// body varies when its repetitions do, or when others of the body do that are made at the same place in the program
// (told by the latest call sites): a few repetitions may agree by chance. One outside the stretch that repeats varies
// when the body's requests of that place, or failing any of that call site, do. `steady.sizes` must not be empty. O(n).
// Pure.
std::vector<std::uint64_t> find_varying(const Problem& problem, const SteadyState& steady);

}  // namespace stalloc::plan
