// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/heap/figures.h"

#include <algorithm>

namespace stalloc::serve {
namespace {

constexpr std::uint64_t kLargeBytes = std::uint64_t{1} << 20;

}  // namespace

PoolIndex Figures::add_pool(CUmemoryPool pool) noexcept {
  const auto end = pools_.begin() + static_cast<std::ptrdiff_t>(pool_count_);
  auto made = std::find_if(pools_.begin(), end, [](const Pool& each) { return !each.alive && each.used == 0; });
  if (made == pools_.end()) return kNoPool;
  if (made == end) ++pool_count_;
  *made = {};
  made->handle = pool;
  made->alive = true;
  made->published = published_ != nullptr;
  return static_cast<PoolIndex>(made - pools_.begin());
}

void Figures::pool_destroyed(CUmemoryPool pool) noexcept {
  const PoolIndex known = find(pool);
  if (known != kNoPool) pools_[known].alive = false;
}

void Figures::set_release_threshold(CUmemoryPool pool, std::uint64_t bytes) noexcept {
  const PoolIndex index = pool_index(pool);
  if (index != kNoPool) pools_[index].release_threshold = bytes;
}

std::uint64_t Figures::release_threshold() const noexcept {
  std::uint64_t most = 0;
  for (std::size_t i = 0; i < pool_count_; ++i) {
    if (pools_[i].alive) most = std::max(most, pools_[i].release_threshold);
  }
  return most;
}

void Figures::add_planned(std::uint64_t bytes, PoolIndex pool) noexcept {
  ++counts_.planned_requests;
  live_.planned += bytes;
  served(bytes, pool);
}

void Figures::remove_planned(std::uint64_t bytes, PoolIndex pool) noexcept {
  live_.planned -= bytes;
  served_freed(bytes, pool);
}

void Figures::add_unplanned(std::uint64_t bytes, PoolIndex pool) noexcept {
  ++counts_.unplanned_requests;
  if (bytes >= kLargeBytes) ++counts_.unplanned_large_requests;
  live_.unplanned += bytes;
  added(bytes, pool);
}

void Figures::remove_unplanned(std::uint64_t bytes, PoolIndex pool) noexcept {
  live_.unplanned -= bytes;
  removed(bytes, pool);
}

void Figures::publish_in(PublishedFigures* published) noexcept {
  published_ = published;
  for (Pool& pool : pools_) pool.published = true;
  PublishedFigures::set(&published->served, 1);
  PublishedFigures::set(&published->misses, counts_.misses);
  publish_requests();
  set_physical(counts_.physical);
}

void Figures::publish_requests() noexcept {
  PublishedFigures::set(&published_->live, live());
  PublishedFigures::set(&published_->live_peak, live_.peak);
  PublishedFigures::set(&published_->served_live_peak, live_.served_peak);
  PublishedFigures::set(&published_->planned_requests, counts_.planned_requests);
  PublishedFigures::set(&published_->dynamic_requests, live_.dynamic_requests);
  PublishedFigures::set(&published_->unplanned_requests, counts_.unplanned_requests);
}

void Figures::set_physical(std::uint64_t bytes) noexcept {
  counts_.physical = bytes;
  counts_.physical_peak = std::max(counts_.physical_peak, bytes);
  if (published_ != nullptr) {
    PublishedFigures::set(&published_->physical, bytes);
    PublishedFigures::set(&published_->physical_peak, counts_.physical_peak);
  }
  for (std::size_t i = 0; i < pool_count_; ++i) {
    pools_[i].reserved_high = std::max(pools_[i].reserved_high, reserved(static_cast<PoolIndex>(i)));
  }
}

void Figures::forget_live() noexcept {
  live_.planned = live_.dynamic = live_.unplanned = live_.pools = 0;
  for (Pool& pool : pools_) pool.used = pool.served = 0;
  if (published_ != nullptr) publish_requests();
}

std::uint64_t Figures::reserved(PoolIndex pool) const noexcept {
  const auto end = pools_.begin() + static_cast<std::ptrdiff_t>(pool_count_);
  const auto first = std::find_if(pools_.begin(), end, [](const Pool& each) { return each.alive && each.known; });
  const std::uint64_t own = pools_[pool].served;
  if (first == end || first != pools_.begin() + pool) return own;
  const std::uint64_t others = live_.served() - own;
  return std::max(counts_.physical, others + own) - others;
}

Statistics Figures::statistics() const noexcept {
  Statistics all = counts_;
  all.live = live();
  all.live_peak = live_.peak;
  all.served_live_peak = live_.served_peak;
  all.served_in_use_peak = std::max(counts_.served_in_use_peak, live_.served_peak);
  all.planned_live = live_.planned;
  all.dynamic_live = live_.dynamic;
  all.unplanned_live = live_.unplanned;
  all.pool_live_peak = live_.pools_peak;
  all.dynamic_requests = live_.dynamic_requests;
  return all;
}

PoolUse Figures::pool_use(CUmemoryPool pool) const noexcept {
  const PoolIndex index = find(pool);
  if (index == kNoPool) return {};
  const Pool& named = pools_[index];
  const std::uint64_t now = reserved(index);
  return {named.known, named.used, named.used_high, named.served, now, std::max(named.reserved_high, now)};
}

void Figures::reset_pool_high(CUmemoryPool pool, bool used, bool reserved_too) noexcept {
  const PoolIndex index = find(pool);
  if (index == kNoPool) return;
  Pool& named = pools_[index];
  if (used) named.used_high = named.used;
  if (reserved_too) named.reserved_high = reserved(index);
}

}  // namespace stalloc::serve
