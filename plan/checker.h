// SPDX-License-Identifier: Apache-2.0
// The independent checker: tells whether a plan is sound for the requests that it was made for.
//
// Naive on purpose, and shares no code with the placement, the layout or the ordering: it translates every slot through
// the handles of its view to physical bytes and replays the requests one by one.
#pragma once

#include <string>

#include "plan/plan.h"
#include "plan/problem.h"

namespace stalloc::plan {

// Names the first thing that is wrong, in one line; empty when the plan is sound:
//   - every request has a slot of its id and a size that holds it, 512-byte aligned, inside its view; where slots have
//     lanes, those of a lane are taken by one thread's requests, in its own order, and other threads' have none;
//   - no two requests that live at the same time share a physical byte, through any view: in the recorded order, and in
//     the plan's own lifetimes with the body repeated;
//   - bytes freed on one stream and taken on another have a Wait whose freed slot records an event, and memory of
//     synchronous calls takes no bytes with a pending free;
//   - what is passed through takes no bytes.
// Expects a plan without defect (find_defect). Time O(n log n); memory O(n).
std::string find_unsoundness(const Problem& problem, const DevicePlan& plan);

}  // namespace stalloc::plan
