// SPDX-License-Identifier: Apache-2.0
// Cutting physical memory into handles. A cuMemCreate handle can only be mapped whole, and mapping costs per handle,
// hardly per byte (docs/planning.md): so few large ones, cut only where a stitched view needs it.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/placement/page_placement.h"
#include "plan/plan.h"

namespace stalloc::plan {

// Fills `handles`, `views` and `physical_bytes` of a plan: `pages` pages of `plan.granularity` bytes, the home view,
// and one view for each of `stitched`. No handle is larger than `cap` bytes (a multiple of the granularity).
void cut_handles(std::uint64_t pages, const std::vector<StitchedView>& stitched, std::uint64_t cap, DevicePlan& plan);

}  // namespace stalloc::plan
