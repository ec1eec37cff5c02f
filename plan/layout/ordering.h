// SPDX-License-Identifier: Apache-2.0
// Computes which slots must wait for frees on other streams.
#pragma once

#include <vector>

#include "plan/layout/layout.h"
#include "plan/plan.h"
#include "plan/problem.h"
#include "plan/sequence/sequence.h"

namespace stalloc::plan {

// Follows every byte through the recorded requests and through the body repeated, and adds a Wait to `plan.waits` for
// each slot that takes bytes last freed on another stream. Sets `event_on_free` of the slots waited for, and of those
// of the body at which their requests may be served. `plan.slots` must be filled. `slots`: of each request of
// `problem`; kNone: it has none.
void add_waits(const Problem& problem, const std::vector<std::size_t>& slots, const Sequence& sequence,
               const Layout& layout, DevicePlan& plan);

}  // namespace stalloc::plan
