// SPDX-License-Identifier: Apache-2.0
#include "plan/online/growth.h"

#include <algorithm>
#include <bit>

#include "plan/placement/units.h"

namespace stalloc::plan {

std::vector<std::uint64_t> new_handle_sizes(const OnlinePolicy& policy, const Growth& growth, std::uint64_t page) {
  const std::uint64_t need = round_up(growth.missing, page);
  const auto whole_pages = [page](std::uint64_t bytes) { return std::max(bytes / page, std::uint64_t{1}) * page; };
  const std::uint64_t held = growth.held + need;
  const std::uint64_t by_room = growth.stitching_overdrawn ? growth.room : growth.room / policy.room_per_handle;
  const std::uint64_t by_held = std::min(held / policy.held_per_handle, by_room);
  std::uint64_t bytes = whole_pages(std::max(by_held, growth.request / policy.handles_per_request));
  const std::uint64_t by_most = growth.most_held / policy.held_per_coarse_handle * growth.bound;
  const std::uint64_t coarse = std::min({bytes * growth.coarseness, by_most, by_room});
  bytes = std::max(bytes, whole_pages(coarse));
  std::vector<std::uint64_t> handles;
  for (std::uint64_t left = need; left > 0; left -= bytes) {
    while (bytes > left) bytes = std::bit_floor(bytes - 1);
    handles.push_back(bytes);
  }
  return handles;
}

}  // namespace stalloc::plan
