// SPDX-License-Identifier: Apache-2.0
// Which handles of a step's plan are created during its first step instead of before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace stalloc::plan {

// When a plan is taken up, blocks of the step before still live, outside of the plan. The plan has memory for them,
// too, since in each later step they lie in it. So both would be held for a while if the plan's memory were created at
// once. But the plan needs some of its handles only later in the step, when the first of those blocks have ended.
struct LateHandles {
  std::size_t from = 0;           // the request of the body before which they are created; 0: there are none
  std::vector<bool> is_late;      // by the plan's handle; empty if there are none
  std::uint64_t bytes = 0;        // of these handles
  std::uint64_t ended_bytes = 0;  // of the blocks of the step before that have ended by then
};

// Chooses the moment so that the most memory of the first step is least. Pre: the plan has only a body. O(n log n) in
// the number of slots, of handles, and of handles that stitched views show. Pure; throws std::bad_alloc.
LateHandles choose_late_handles(const DevicePlan& plan);

}  // namespace stalloc::plan
