// Requests whose sizes vary from step to step: which of them get a place.
#pragma once

#include "plan/problem.h"
#include "plan/steps/sequence.h"
#include "plan/steps/steady_state.h"

namespace stalloc::plan {

// For a body found by call sites: decides what is planned and what is left to the run-time sub-allocator. Another run
// will make other sizes, so the plan must not count on what varies. What is planned holds its memory all the time:
//
//     bytes |           left __                needed: the peak of what is planned and, beside it, the peak of what is
//           |      _________/  \____           left, whenever it comes; that is the recorded peak only when the two
//           | ____/ planned         \____      come together
//
// Planned are the requests that do not vary and live for at least so many requests: the fewest for which what is needed
// stays within a thousandth of the recorded peak. The others get room only where it is free then anyway, the largest
// first: those that vary for the largest size seen (Item::largest), but they are not counted on. What gets no room has
// PassReason::Varying or Left. `steady.sizes` must not be empty; twins of the body are not yet found. O(n log^2 n).
// Pure.
void choose_dynamic(const Problem& problem, const SteadyState& steady, Sequence& sequence);

}  // namespace stalloc::plan
