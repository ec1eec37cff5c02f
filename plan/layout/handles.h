// SPDX-License-Identifier: Apache-2.0
// Cuts physical memory into handles. A cuMemCreate handle can be mapped only as a whole, and the cost of mapping
// follows the number of handles much more than their bytes (docs/planning.md). Handles are cut where a stitched view
// begins or ends a piece, and at the cap (6 MiB, or 1/2048 of the plan).
#pragma once

#include <cstdint>
#include <vector>

#include "plan/layout/page_placement.h"
#include "plan/plan.h"

namespace stalloc::plan {

// Fills `handles`, `views` and `physical_bytes` of a plan: `pages` pages of `plan.granularity` bytes, the home view,
// and one view for each of `stitched`. No handle is larger than `cap` bytes (a multiple of the granularity).
void cut_handles(std::uint64_t pages, const std::vector<StitchedView>& stitched, std::uint64_t cap, DevicePlan& plan);

}  // namespace stalloc::plan
