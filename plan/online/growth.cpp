// SPDX-License-Identifier: Apache-2.0
#include "plan/online/growth.h"

#include <algorithm>
#include <bit>

#include "plan/placement/units.h"

namespace stalloc::plan {

std::vector<std::uint64_t> new_handle_sizes(const OnlinePolicy& policy, const Growth& growth, std::uint64_t page) {
  const std::uint64_t need = round_up(growth.missing, page);
  const std::uint64_t held = growth.held + need;
  const std::uint64_t by_room = growth.stitching_overdrawn ? growth.room : growth.room / policy.room_per_handle;
  const std::uint64_t by_held = std::min(held / policy.held_per_handle, by_room);
  const std::uint64_t fine = std::max({by_held, growth.request / policy.handles_per_request, page});
  const std::uint64_t by_most = growth.most_held / policy.held_per_coarse_handle * growth.bound;
  const std::uint64_t bound = std::max(by_most, growth.request / policy.handles_per_coarse_request);
  const std::uint64_t coarse = std::min({fine * growth.coarseness, bound, by_room});
  std::uint64_t bytes = std::bit_floor(std::max(fine, coarse));
  std::vector<std::uint64_t> handles;
  for (std::uint64_t left = need; left > 0; left -= bytes) {
    while (bytes > left) bytes /= 2;
    handles.push_back(bytes);
  }
  return handles;
}

}  // namespace stalloc::plan
