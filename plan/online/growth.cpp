#include "plan/online/growth.h"

#include <algorithm>
#include <bit>

#include "plan/placement/units.h"

namespace stalloc::plan {
namespace {

std::uint64_t handle_bytes(const OnlinePolicy& policy, std::uint64_t request, std::uint64_t held, std::uint64_t page) {
  const std::uint64_t usual = std::max(policy.handle_pages * page, held / policy.held_per_handle);
  if (request / page < policy.huge_pages) return usual;
  return std::max(usual, std::min({request / policy.handles_per_huge_request, held / policy.held_per_huge_handle,
                                   policy.huge_handle_pages * page}));
}

// The largest of the sizes that are used.
std::uint64_t rounded_down(const OnlinePolicy& policy, std::uint64_t bytes, std::uint64_t page) {
  if (bytes / page < policy.fine_pages) return std::bit_floor(bytes);
  return bytes / page * page;
}

}  // namespace

std::vector<std::uint64_t> new_handle_sizes(const OnlinePolicy& policy, const Growth& growth, std::uint64_t page) {
  const std::uint64_t need = round_up(growth.missing, page);
  const std::uint64_t held = growth.held + need;
  std::uint64_t best = handle_bytes(policy, growth.request, held, page);
  if (growth.first) best = std::max(best, std::min(policy.first_pages * page, held / policy.held_per_first_handle));
  if (growth.stranded > held / policy.held_per_stranded) best = std::max(best / policy.stranded_divisor, page);
  std::uint64_t bytes = rounded_down(policy, std::max(best, page), page);  // absurd parameters wrap to nothing
  if (growth.device > 0 && growth.request >= growth.device / policy.device_per_probe) {
    bytes = std::max(bytes, std::bit_floor(growth.request / policy.handles_per_probe));
  }
  std::vector<std::uint64_t> handles;
  for (std::uint64_t left = need; left > 0; left -= bytes) {
    while (bytes > left) bytes = std::bit_floor(bytes - 1);
    handles.push_back(bytes);
  }
  return handles;
}

bool is_large_free(const OnlinePolicy& policy, std::uint64_t bytes, std::uint64_t page) noexcept {
  return bytes / page >= policy.large_free_pages;
}

bool GrowthPace::spares_stitching(std::uint64_t request, std::uint64_t held, std::uint64_t free) noexcept {
  if (request - looked_at_ >= policy_.pace_requests) {
    looked_at_ = request;
    before_ = last_;
    last_ = held;
  }
  const bool doubles = held / 2 > before_;
  return doubles && free <= held / policy_.held_per_free_growing;
}

}  // namespace stalloc::plan
