// SPDX-License-Identifier: Apache-2.0
// What a heap knows of live ranges, also of those that CUDA served, and its figures.
#include "interpose/serve/heap/heap.h"

#include <algorithm>
#include <mutex>

namespace stalloc::serve {

std::optional<LiveRange> Heap::find_live(CUdeviceptr address) noexcept {
  const PlainLock lock(mutex_);
  const LiveEntry* entry = live_.find_holding(address);
  if (entry == nullptr) return std::nullopt;
  const bool from_pool = entry->pool != kNoPool;
  return LiveRange{
      entry->address,    entry->bytes, entry->number, from_pool, from_pool ? figures_.pool(entry->pool) : nullptr,
      entry->sync_memops};
}

void Heap::set_sync_memops(CUdeviceptr address, bool set) noexcept {
  const PlainLock lock(mutex_);
  if (const LiveEntry* entry = live_.find_holding(address)) live_.set_sync_memops(entry->address, set);
}

void Heap::update_physical() noexcept {
  const std::uint64_t physical = planned_.physical_bytes() + (dynamic_ ? dynamic_->physical_bytes() : 0);
  if (physical != figures_.physical()) figures_.set_physical(physical);
  held_bytes_.store(physical, std::memory_order_relaxed);
  if (dynamic_) {
    dynamic_->set_limit(limit_ - std::min(limit_, planned_.physical_bytes()));
    const plan::Range small = dynamic_->offsets_for_small();
    held_for_small_.store(dynamic_->bytes_for_small(), std::memory_order_relaxed);
    small_begin_.store(dynamic_->home(small.begin), std::memory_order_relaxed);
    small_end_.store(dynamic_->home(small.begin) + small.bytes(), std::memory_order_relaxed);
  }
  if (published_ != nullptr) {
    PublishedFigures::set(&published_->mapping_calls_after_start, mapping_calls() - mapping_calls_at_start_);
  }
}

void Heap::publish_in(PublishedFigures* published) noexcept {
  const CompletingLock lock(*this);
  published_ = published;
  PublishedFigures::set(&published->mapping_calls_at_start, mapping_calls_at_start_);
  figures_.publish_in(published);
  update_physical();
}

PoolUse Heap::pool_use(CUmemoryPool pool) const noexcept {
  const PlainLock lock(mutex_);
  return figures_.pool_use(pool);
}

void Heap::reset_pool_high(CUmemoryPool pool, bool used, bool reserved) noexcept {
  const CompletingLock lock(*this);
  figures_.reset_pool_high(pool, used, reserved);
}

void Heap::pool_destroyed(CUmemoryPool pool) noexcept {
  const CompletingLock lock(*this);
  figures_.pool_destroyed(pool);
  update_release_threshold();
}

void Heap::set_release_threshold(CUmemoryPool pool, std::uint64_t bytes) noexcept {
  const PlainLock lock(mutex_);
  figures_.set_release_threshold(pool, bytes);
  update_release_threshold();
}

void Heap::keep_idle_memory() noexcept {
  const PlainLock lock(mutex_);
  keeps_idle_memory_ = true;
  update_release_threshold();
}

void Heap::update_release_threshold() noexcept {
  release_threshold_.store(keeps_idle_memory_ ? ~std::uint64_t{0} : figures_.release_threshold(),
                           std::memory_order_relaxed);
}

std::uint64_t Heap::mapping_calls() const noexcept {
  return planned_.mapping_calls() + (dynamic_ ? dynamic_->mapper().calls() : 0);
}

Statistics Heap::statistics() const noexcept {
  const PlainLock lock(mutex_);
  return gather_statistics();
}

bool Heap::try_statistics(Statistics* statistics) const noexcept {
  const std::unique_lock look(mutex_, std::try_to_lock);
  if (look.owns_lock()) *statistics = gather_statistics();
  return look.owns_lock();
}

Statistics Heap::gather_statistics() const noexcept {
  Statistics statistics = figures_.statistics();
  statistics.resynchronizations = planned_.resynchronizations();
  statistics.waits = order_.waits();
  statistics.spared_waits = order_.spared_waits();
  statistics.mapping_calls_at_start = mapping_calls_at_start_;
  statistics.mapping_calls_after_start = mapping_calls() - mapping_calls_at_start_;
  statistics.mapping_ns_at_start = mapping_ns_at_start_;
  if (dynamic_) {
    const Dynamic::Counts& counts = dynamic_->counts();
    statistics.mapping_ns_after_start = dynamic_->mapper().nanoseconds();
    statistics.stitches = counts.views + counts.repaired;
    statistics.view_hits = counts.view_hits;
    statistics.grows = counts.grows;
    statistics.borrows += counts.borrows;
    if (steps_) statistics.step_plans = steps_->plans();
    if (steps_) statistics.step_requests = steps_->requests_in_slots();
    statistics.views = dynamic_->views();
  }
  return statistics;
}

// --- requests that CUDA served ---

void Heap::note_unplanned(CUdeviceptr address, std::size_t bytes, CUmemoryPool pool) noexcept {
  const CompletingLock lock(*this);
  note(address, bytes, figures_.pool_index(pool));
}

void Heap::note_unplanned_sync(CUdeviceptr address, std::size_t bytes) noexcept {
  const CompletingLock lock(*this);
  note(address, bytes, kNoPool);
}

void Heap::note(CUdeviceptr address, std::size_t bytes, PoolIndex pool) noexcept {
  LiveEntry missed;  // a range at the same address whose free was not observed
  if (unplanned_.erase(address, &missed)) figures_.remove_unplanned(missed.bytes, missed.pool);
  if (address == 0 || !unplanned_.reserve_one()) return;
  unplanned_.insert({address, bytes, 0, Origin::Original, pool, kNoStream});
  figures_.add_unplanned(bytes, pool);
}

std::uint64_t Heap::find_unplanned(CUdeviceptr address) const noexcept {
  const PlainLock lock(mutex_);
  const LiveEntry* entry = unplanned_.find(address);
  return entry == nullptr ? 0 : entry->number;
}

void Heap::note_original_freed(CUdeviceptr address, std::uint64_t number) noexcept {
  const CompletingLock lock(*this);
  const LiveEntry* noted = unplanned_.find(address);
  if (noted == nullptr || noted->number != number) return;
  LiveEntry entry;
  if (unplanned_.erase(address, &entry)) figures_.remove_unplanned(entry.bytes, entry.pool);
}

}  // namespace stalloc::serve
