#include "interpose/serve/figures.h"

#include <algorithm>

namespace stalloc::serve {
namespace {

constexpr std::uint64_t kLargeBytes = std::uint64_t{1} << 20;

}  // namespace

const Figures::Pool* Figures::find(CUmemoryPool pool) const noexcept {
  const auto end = pools_.begin() + static_cast<std::ptrdiff_t>(pool_count_);
  const auto found =
      std::find_if(pools_.begin(), end, [&](const Pool& known) { return known.handle == pool && !known.gone; });
  return found == end ? nullptr : &*found;
}

PoolIndex Figures::pool_index(CUmemoryPool pool) noexcept {
  if (const Pool* known = find(pool)) return static_cast<PoolIndex>(known - pools_.data());
  const auto end = pools_.begin() + static_cast<std::ptrdiff_t>(pool_count_);
  auto made = std::find_if(pools_.begin(), end, [](const Pool& known) { return known.gone && known.use.used == 0; });
  if (made == pools_.end()) return kNoPool;
  if (made == end) ++pool_count_;
  *made = {};
  made->handle = pool;
  made->use.known = true;
  return static_cast<PoolIndex>(made - pools_.begin());
}

void Figures::pool_destroyed(CUmemoryPool pool) noexcept {
  const Pool* known = find(pool);
  if (known != nullptr) pools_[static_cast<std::size_t>(known - pools_.data())].gone = true;
}

void Figures::added(std::uint64_t bytes, PoolIndex pool) noexcept {
  const std::uint64_t served = sums_.planned_live_bytes + sums_.dynamic_live_bytes;
  sums_.served_live_peak_bytes = std::max(sums_.served_live_peak_bytes, served);
  sums_.live_peak_bytes = std::max(sums_.live_peak_bytes, served + sums_.unplanned_live_bytes);
  if (pool == kNoPool) return;
  PoolUse& use = pools_[pool].use;
  use.used += bytes;
  use.used_high = std::max(use.used_high, use.used);
  sums_.pool_live_bytes += bytes;
  sums_.pool_live_peak_bytes = std::max(sums_.pool_live_peak_bytes, sums_.pool_live_bytes);
}

void Figures::removed(std::uint64_t bytes, PoolIndex pool) noexcept {
  if (pool == kNoPool) return;
  pools_[pool].use.used -= bytes;
  sums_.pool_live_bytes -= bytes;
}

// The pool has a share in what is held from its first request on.
void Figures::served(std::uint64_t bytes, PoolIndex pool) noexcept {
  added(bytes, pool);
  if (pool == kNoPool) return;
  PoolUse& use = pools_[pool].use;
  use.reserved = sums_.physical_bytes;
  use.reserved_high = std::max(use.reserved_high, use.reserved);
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

void Figures::dynamic(std::uint64_t bytes, PoolIndex pool) noexcept {
  ++sums_.dynamic_requests;
  sums_.dynamic_live_bytes += bytes;
  served(bytes, pool);
}

void Figures::dynamic_freed(std::uint64_t bytes, PoolIndex pool) noexcept {
  sums_.dynamic_live_bytes -= bytes;
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
  const Pool* known = find(pool);
  return known == nullptr ? PoolUse{} : known->use;
}

void Figures::reset_pool_high(CUmemoryPool pool, bool used, bool reserved) noexcept {
  const Pool* known = find(pool);
  if (known == nullptr) return;
  PoolUse& use = pools_[static_cast<std::size_t>(known - pools_.data())].use;
  if (used) use.used_high = use.used;
  if (reserved) use.reserved_high = use.reserved;
}

}  // namespace stalloc::serve
