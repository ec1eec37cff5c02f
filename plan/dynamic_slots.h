// Requests whose sizes vary from step to step: which of them get a place.
#pragma once

#include "plan/problem.h"
#include "plan/sequence.h"
#include "plan/steady_state.h"

namespace stalloc::plan {

// Sets `largest` and `bytes` of the items whose sizes vary and that get room for the largest size seen; the others of
// them get PassReason::Varying and no bytes, so that they are left to the run-time sub-allocator. Chosen is what needs
// least by a safe estimate: the peak of what is planned plus the recorded peak of what is left, as if the sub-allocator
// could borrow nothing from the plan. Compared are, largest requests first:
//   - what fits below the peak of the requests that do not vary: it costs nothing;
//   - what fits below the recorded peak of all requests;
//   - everything.
// Requests outside the stretch that repeats vary if the body has requests of their call site that do, and none of their
// size that does not. `steady.sizes` must not be empty; twins of the body are not yet found. O(n log n). Pure.
void choose_dynamic(const Problem& problem, const SteadyState& steady, Sequence& sequence);

}  // namespace stalloc::plan
