// SPDX-License-Identifier: Apache-2.0
#include "plan/layout/handles.h"

#include <algorithm>

namespace stalloc::plan {
namespace {

// Where handles begin, and the end of the last; ascending.
std::vector<std::uint64_t> find_cuts(std::uint64_t bytes, const std::vector<StitchedView>& stitched,
                                     std::uint64_t cap) {
  std::vector<std::uint64_t> needed = {0, bytes};
  for (const StitchedView& view : stitched) {
    for (const Range& piece : view.pieces()) {
      needed.push_back(piece.begin);
      needed.push_back(piece.end);
    }
  }
  std::sort(needed.begin(), needed.end());
  std::vector<std::uint64_t> cuts = {0};
  for (const std::uint64_t cut : needed) {
    while (cut - cuts.back() > cap) cuts.push_back(cuts.back() + cap);
    if (cut != cuts.back()) cuts.push_back(cut);
  }
  return cuts;
}

}  // namespace

void cut_handles(std::uint64_t pages, const std::vector<StitchedView>& stitched, std::uint64_t cap, DevicePlan& plan) {
  plan.physical_bytes = pages * plan.granularity;
  const std::vector<std::uint64_t> cuts = find_cuts(plan.physical_bytes, stitched, cap);
  View& home = plan.views.emplace_back();
  home.bytes = plan.physical_bytes;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    plan.handles.push_back(cuts[i + 1] - cuts[i]);
    home.handles.push_back(static_cast<std::uint32_t>(i));
  }
  for (const StitchedView& view : stitched) {
    View& cut = plan.views.emplace_back();
    cut.bytes = view.bytes();
    for (const Range& piece : view.pieces()) {
      auto handle = static_cast<std::uint32_t>(std::lower_bound(cuts.begin(), cuts.end(), piece.begin) - cuts.begin());
      for (; cuts[handle] < piece.end; ++handle) cut.handles.push_back(handle);
    }
  }
}

}  // namespace stalloc::plan
