// SPDX-License-Identifier: Apache-2.0
// Which slots must wait for frees on other streams.
#pragma once

#include <vector>

#include "plan/layout/layout.h"
#include "plan/plan.h"
#include "plan/problem.h"
#include "plan/sequence/sequence.h"

namespace stalloc::plan {

// Follows every byte through the recorded requests and through the body repeated, and adds a Wait to `plan.waits` for
// each slot that takes bytes last freed on another stream; sets `event_on_free` of the slots waited for, and of others
// that the library will take to be waited for, since it knows one free for each page and stream
// (interpose/serve/streams/free_marks.h). `plan.slots` must be filled. `slots`: of each request of `problem`; kNone: it
// has none.
void add_waits(const Problem& problem, const std::vector<std::size_t>& slots, const Sequence& sequence,
               const Layout& layout, DevicePlan& plan);

}  // namespace stalloc::plan
