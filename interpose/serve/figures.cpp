#include "interpose/serve/figures.h"

#include <algorithm>

namespace stalloc::serve {
namespace {

constexpr std::uint64_t kLargeBytes = std::uint64_t{1} << 20;

}  // namespace

PoolIndex Figures::add_pool(CUmemoryPool pool) noexcept {
  const auto end = pools_.begin() + static_cast<std::ptrdiff_t>(pool_count_);
  auto made = std::find_if(pools_.begin(), end, [](const Pool& known) { return !known.alive && known.use.used == 0; });
  if (made == pools_.end()) return kNoPool;
  if (made == end) ++pool_count_;
  *made = {};
  made->handle = pool;
  made->alive = true;
  made->use.known = true;
  return static_cast<PoolIndex>(made - pools_.begin());
}

void Figures::pool_destroyed(CUmemoryPool pool) noexcept {
  const PoolIndex known = find(pool);
  if (known != kNoPool) pools_[known].alive = false;
}

void Figures::planned(std::uint64_t bytes, PoolIndex pool) noexcept {
  ++sums_.planned_requests;
  sums_.planned_live_bytes += bytes;
  sums_.planned_live_peak_bytes = std::max(sums_.planned_live_peak_bytes, sums_.planned_live_bytes);
  served(bytes, pool);
}

void Figures::planned_freed(std::uint64_t bytes, PoolIndex pool) noexcept {
  sums_.planned_live_bytes -= bytes;
  removed(bytes, pool);
}

void Figures::unplanned(std::uint64_t bytes, PoolIndex pool) noexcept {
  ++sums_.unplanned_requests;
  if (bytes >= kLargeBytes) ++sums_.unplanned_large_requests;
  sums_.unplanned_live_bytes += bytes;
  added(bytes, pool);
}

void Figures::unplanned_freed(std::uint64_t bytes, PoolIndex pool) noexcept {
  sums_.unplanned_live_bytes -= bytes;
  removed(bytes, pool);
}

void Figures::physical_is(std::uint64_t bytes) noexcept {
  sums_.physical_bytes = bytes;
  sums_.physical_peak_bytes = std::max(sums_.physical_peak_bytes, bytes);
  for (std::size_t i = 0; i < pool_count_; ++i) {
    PoolUse& use = pools_[i].use;
    if (use.reserved == 0) continue;
    use.reserved = bytes;
    use.reserved_high = std::max(use.reserved_high, bytes);
  }
}

PoolUse Figures::pool_use(CUmemoryPool pool) const noexcept {
  const PoolIndex known = find(pool);
  return known == kNoPool ? PoolUse{} : pools_[known].use;
}

void Figures::reset_pool_high(CUmemoryPool pool, bool used, bool reserved) noexcept {
  const PoolIndex known = find(pool);
  if (known == kNoPool) return;
  PoolUse& use = pools_[known].use;
  if (used) use.used_high = use.used;
  if (reserved) use.reserved_high = use.reserved;
}

}  // namespace stalloc::serve
