// SPDX-License-Identifier: Apache-2.0
// Which requests get a place where sizes vary from step to step.
#pragma once

#include "plan/problem.h"
#include "plan/sequence/sequence.h"
#include "plan/steps/steady_state.h"

namespace stalloc::plan {

// For a body found by call sites: decides what is planned and what is left to the run-time sub-allocator. Another run
// will have other sizes, so the plan must not rely on requests that vary. Planned requests hold their memory all the
// time:
//
//     bytes |           left __                needed: the peak of what is planned and, beside it, the peak of what is
//           |      _________/  \____           left, whenever it comes; that is the recorded peak only when the two
//           | ____/ planned         \____      come together
//
// A request is planned if it does not vary and lives for at least a certain number of requests, the fewest for which
// the memory needed stays within a thousandth of the recorded peak. The others get room only where it is free anyway,
// the largest first; those that vary get it for the largest size seen (Item::largest). Requests without room have
// PassReason::Varying or Left. `steady.sizes` must not be empty; twins of the body are not yet found. O(n log^2 n).
// Pure.
void choose_dynamic(const Problem& problem, const SteadyState& steady, Sequence& sequence);

}  // namespace stalloc::plan
