// SPDX-License-Identifier: Apache-2.0
// The independent checker: verifies that a plan is sound for the requests for which it was made.
//
// It is deliberately simple, and shares no code with the placement, the layout or the ordering: it translates every
// slot through the handles of its view to physical bytes and replays the requests one by one.
#pragma once

#include <string>

#include "plan/plan.h"
#include "plan/problem.h"

namespace stalloc::plan {

// Names the first violation in one line; empty when the plan is sound, which means:
//   - every request has a slot with its id that is large enough, 512-byte aligned and inside its view; where slots have
//     lanes, the slots of a lane serve the requests of one thread, in its own order, and requests of other threads have
//     no slot;
//   - no two requests that live at the same time share a physical byte, through any view: in the recorded order, and in
//     the plan's own lifetimes with the body repeated;
//   - no slot says that its bytes are free earlier than they were in the run (a CSV: each slot has the file's own
//     times); where slots have lanes, their order is another one than the run's, and this is not compared;
//   - for bytes freed on one stream and taken on another there is a Wait whose freed slot records an event (also the
//     body's slot that may serve the request instead, where the epilogue begins like the body), and memory
//     of synchronous calls takes no bytes with a pending free, nor others of a page of which a stream has freed a part;
//     cudaFree of stream-ordered memory leaves its bytes ordered after the frees before it was made;
//   - requests left to the original allocator take no bytes.
// Expects a plan without defect (find_defect). Time O(n log n); memory O(n).
std::string find_unsoundness(const Problem& problem, const DevicePlan& plan);

}  // namespace stalloc::plan
