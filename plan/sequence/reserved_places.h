// SPDX-License-Identifier: Apache-2.0
// Reserves the places of some slots before they are requested.
#pragma once

#include "plan/sequence/sequence.h"

namespace stalloc::plan {

// For requests that live through the body (the optimizer's state, a library's workspace), reserves the place from the
// first slot on (SequenceSlot::lower), as long as that does not raise the peak of live bytes. Another run may make such
// a request earlier: one that resumes from a checkpoint loads the state before its first step, and the places of that
// step's other requests must still be free. The reservation mostly costs nothing, since in the body the state is live
// beside everything that a step makes. Slots are treated in the order of the plan. Does nothing without a body. O(n log
// n).
void reserve_places(Sequence& sequence);

}  // namespace stalloc::plan
