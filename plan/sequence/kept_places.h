// SPDX-License-Identifier: Apache-2.0
// Which slots have their place before they are requested.
#pragma once

#include "plan/sequence/sequence.h"

namespace stalloc::plan {

// What lives through the body (the optimizer's state, a library's workspace) keeps its place free from the first slot
// on (Item::lower), as long as that does not raise the peak of live bytes. Another run may make it earlier: one that
// resumes from a checkpoint loads the state before its first step, and that step's other requests must find their
// places free all the same. It mostly costs nothing, since in the body the state lives beside all that a step makes.
// Those first in the plan come first. Only where there is a body. O(n log n).
void keep_places(Sequence& sequence);

}  // namespace stalloc::plan
