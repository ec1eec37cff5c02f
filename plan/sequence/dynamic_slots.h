// SPDX-License-Identifier: Apache-2.0
// Which requests get a place where sizes vary from step to step.
#pragma once

#include "plan/problem.h"
#include "plan/sequence/sequence.h"
#include "plan/steps/steady_state.h"

namespace stalloc::plan {

// For a body found by call sites: decides which requests are planned and which are left to the run-time sub-allocator.
// Another run will have other sizes, so the plan must not rely on varying requests. Planned requests hold their memory
// all the time:
//
//     bytes |           left __                needed: the peak of what is planned and, beside it, the peak of what is
//           |      _________/  \____           left, whenever it comes; that is the recorded peak only when the two
//           | ____/ planned         \____      come together
//
// A request is planned if it does not vary and lives for at least a certain number of requests. This number is the
// smallest for which the needed memory exceeds the recorded peak by at most a thousandth. The other requests get a
// place only where this needs no further memory, the largest first; varying ones get room for the largest size seen
// (SequenceSlot::largest). Requests without a place have PassReason::Varying or Left. Pre: `steady.sizes` is not empty,
// and twins of the body are not yet found. O(n log^2 n). Pure.
void choose_dynamic(const Problem& problem, const SteadyState& steady, Sequence& sequence);

}  // namespace stalloc::plan
