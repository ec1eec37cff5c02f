// SPDX-License-Identifier: Apache-2.0
// torch.cuda.memory_stats: the sums of the heap's and the native allocator's figures, and the peaks of these sums.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "interpose/torch/door.h"
#include "interpose/torch/door/versions.h"

namespace stalloc::torch::door {

// The statistics of one device. A tensor counts as small if PyTorch would put it into its pool of small blocks. The
// memory that the heap keeps for small requests counts as reserved for that pool, and so do bytes of small tensors in
// the rest of the memory (a plan has no part for small requests). The figures of segments and splits are the native
// allocator's alone: the heap's memory is mapped, like that of expandable segments, which PyTorch does not count there.
// Not thread-safe.
class Statistics {
 public:
  // The same values as c10's StatType.
  enum Pool : std::size_t { kSmall = 1, kLarge = 2 };
  static constexpr std::size_t kLargestSmall = std::size_t{1} << 20;  // bytes, as Block::rounded counts them
  static Pool pool_of(std::size_t bytes) { return bytes <= kLargestSmall ? kSmall : kLarge; }

  // The heap has served a request of `requested` bytes by `bytes` at `address`, and now holds `held`.
  void count_allocation(const void* address, std::size_t requested, std::size_t bytes, stalloc_door_held held) {
    const Pool pool = pool_of(bytes);
    set_small_range(held);
    if (is_outside_small_range(address, pool)) small_outside_ += static_cast<std::int64_t>(bytes);
    add(pool, kCount, 1);
    add(pool, kBytes, static_cast<std::int64_t>(bytes));
    add(pool, kRequested, static_cast<std::int64_t>(requested));
    if (set_held(held)) {
      update_peaks(kSmall);
      update_peaks(kLarge);
    } else {
      update_peaks(pool);
    }
  }
  void count_free(const void* address, std::size_t requested, std::size_t bytes) {
    const Pool pool = pool_of(bytes);
    if (is_outside_small_range(address, pool)) small_outside_ -= static_cast<std::int64_t>(bytes);
    subtract(pool, kCount, 1);
    subtract(pool, kBytes, static_cast<std::int64_t>(bytes));
    subtract(pool, kRequested, static_cast<std::int64_t>(requested));
  }
  // The physical memory that the heap now holds.
  void update_held(stalloc_door_held held) {
    set_small_range(held);
    set_held(held);
    update_peaks(kSmall);
    update_peaks(kLarge);
  }
  void count_retry() { ++retries_; }
  // Adds to what the native allocator counts as its waits for all streams.
  void correct_syncs(std::int64_t more) { syncs_ += more; }

  // Notes a reading of the native allocator's figures. A reading includes every change that was made before its number
  // was taken. So of two readings, which may be noted in either order, the one with the larger number counts.
  void update_native(const DeviceStats& stats, std::uint64_t reading) {
    if (reading < noted_reading_) return;
    noted_reading_ = reading;
    for (std::size_t i = 0; i < kMerged.size(); ++i) {
      for (std::size_t type = 0; type < kTypes; ++type) native_[i][type] = (stats.*kMerged[i].stat)[type].current;
    }
    update_peaks(kSmall);
    update_peaks(kLarge);
  }
  // Adds the heap's figures to a reading of the native allocator's.
  void merge_into(DeviceStats* stats, std::uint64_t reading) {
    update_native(*stats, reading);
    for (std::size_t i = 0; i < kMerged.size(); ++i) {
      for (std::size_t type = 0; type < kTypes; ++type) {
        const Tally heap = tally_of(kMerged[i].tally, type);
        auto& stat = (stats->*kMerged[i].stat)[type];
        stat.current += heap.current;
        stat.allocated += heap.allocated;
        stat.freed += heap.freed;
        stat.peak = std::max(stat.peak, peaks_[i][type]);
      }
    }
    stats->num_alloc_retries += retries_;
    stats->num_sync_all_streams += syncs_;
    stats->num_device_alloc += increases_;
    stats->num_device_free += decreases_;
  }

  void reset_accumulated() {
    for (auto& pool : heap_) {
      for (Tally& tally : pool) tally.allocated = tally.freed = 0;
    }
    retries_ = syncs_ = increases_ = decreases_ = 0;
  }
  void reset_peaks() {
    peaks_ = {};
    update_peaks(kSmall);
    update_peaks(kLarge);
  }
  [[nodiscard]] std::int64_t heap_bytes() const { return current(kBytes, kAll); }
  [[nodiscard]] std::int64_t total_bytes() const { return heap_bytes() + native_[kAllocatedBytes][kAll]; }
  [[nodiscard]] std::int64_t total_reserved() const { return current(kHeld, kAll) + native_[kReservedBytes][kAll]; }
  [[nodiscard]] std::int64_t native_reserved() const { return native_[kReservedBytes][kAll]; }
  [[nodiscard]] std::int64_t native_idle() const { return native_reserved() - native_[kAllocatedBytes][kAll]; }
  // Bytes of freed blocks that the native allocator keeps until other streams have finished with them.
  [[nodiscard]] std::int64_t native_waiting() const {
    return native_[kActiveBytes][kAll] - native_[kAllocatedBytes][kAll];
  }
  // Bytes in the native allocator's segments of small blocks that no block uses.
  [[nodiscard]] std::int64_t native_idle_for_small() const {
    return native_[kReservedBytes][kSmall] - native_[kActiveBytes][kSmall];
  }

 private:
  static constexpr std::size_t kAll = 0;
  static constexpr std::size_t kTypes = 3;
  enum : std::size_t { kCount, kBytes, kRequested, kHeld, kTallies };
  struct Tally {
    std::int64_t current = 0;
    std::int64_t allocated = 0;
    std::int64_t freed = 0;
  };
  struct Merged {
    decltype(&DeviceStats::allocation) stat;
    std::size_t tally;
  };
  static constexpr std::array<Merged, 6> kMerged = {{{&DeviceStats::allocation, kCount},
                                                     {&DeviceStats::active, kCount},
                                                     {&DeviceStats::allocated_bytes, kBytes},
                                                     {&DeviceStats::active_bytes, kBytes},
                                                     {&DeviceStats::requested_bytes, kRequested},
                                                     {&DeviceStats::reserved_bytes, kHeld}}};
  enum : std::size_t { kAllocatedBytes = 2, kActiveBytes = 3, kReservedBytes = 5 };  // of kMerged

  // The range never changes once it is known. The library reports none after it was turned off.
  void set_small_range(stalloc_door_held held) {
    if (held.small_end == 0) return;
    small_begin_ = held.small_begin;
    small_end_ = held.small_end;
  }
  // Whether a tensor is small but lies outside the part that serves only small requests.
  [[nodiscard]] bool is_outside_small_range(const void* address, Pool pool) const {
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    return pool == kSmall && (at < small_begin_ || at >= small_end_);
  }
  Tally& heap(Pool pool, std::size_t tally) { return heap_[pool - kSmall][tally]; }
  [[nodiscard]] const Tally& heap(Pool pool, std::size_t tally) const { return heap_[pool - kSmall][tally]; }

  void add(Pool pool, std::size_t tally, std::int64_t amount) {
    heap(pool, tally).current += amount;
    heap(pool, tally).allocated += amount;
  }
  void subtract(Pool pool, std::size_t tally, std::int64_t amount) {
    heap(pool, tally).current -= amount;
    heap(pool, tally).freed += amount;
  }
  // Returns whether it has changed.
  bool set_held(stalloc_door_held held) {
    const auto all = static_cast<std::int64_t>(held.all);
    const std::int64_t before = heap(kSmall, kHeld).current + heap(kLarge, kHeld).current;
    if (all > before) ++increases_;
    if (all < before) ++decreases_;
    const auto small = static_cast<std::int64_t>(std::min(held.for_small, held.all));
    const bool of_small = set_held(kSmall, small);
    const bool of_large = set_held(kLarge, all - small);
    return of_small || of_large;
  }
  bool set_held(Pool pool, std::int64_t bytes) {
    const std::int64_t more = bytes - heap(pool, kHeld).current;
    if (more > 0) add(pool, kHeld, more);
    if (more < 0) subtract(pool, kHeld, -more);
    return more != 0;
  }

  [[nodiscard]] std::int64_t current(std::size_t tally, std::size_t type) const {
    std::int64_t small = heap(kSmall, tally).current;
    std::int64_t large = heap(kLarge, tally).current;
    if (tally == kHeld) {
      small += small_outside_;
      large -= small_outside_;
    }
    return type == kAll ? small + large : type == kSmall ? small : large;
  }
  [[nodiscard]] Tally tally_of(std::size_t tally, std::size_t type) const {
    const Tally& small = heap(kSmall, tally);
    const Tally& large = heap(kLarge, tally);
    const std::int64_t now = current(tally, type);
    if (type == kSmall) return {now, small.allocated, small.freed};
    if (type == kLarge) return {now, large.allocated, large.freed};
    return {now, small.allocated + large.allocated, small.freed + large.freed};
  }
  // Updates the peaks of all memory and of one pool.
  void update_peaks(Pool pool) {
    for (std::size_t i = 0; i < kMerged.size(); ++i) {
      for (const std::size_t type : {kAll, static_cast<std::size_t>(pool)}) {
        peaks_[i][type] = std::max(peaks_[i][type], current(kMerged[i].tally, type) + native_[i][type]);
      }
    }
  }

  std::array<std::array<Tally, kTallies>, 2> heap_{};  // by pool; kHeld: the memory reserved for the pool
  std::uintptr_t small_begin_ = 0;                     // as in stalloc_door_held
  std::uintptr_t small_end_ = 0;
  std::int64_t small_outside_ = 0;  // bytes of small tensors outside the part for small requests
  std::array<std::array<std::int64_t, kTypes>, kMerged.size()> native_{};
  std::uint64_t noted_reading_ = 0;  // the number of the reading that `native_` holds
  std::array<std::array<std::int64_t, kTypes>, kMerged.size()> peaks_{};
  std::int64_t retries_ = 0;
  std::int64_t syncs_ = 0;      // may be negative
  std::int64_t increases_ = 0;  // how often held memory was found to have grown since it was last read
  std::int64_t decreases_ = 0;
};

}  // namespace stalloc::torch::door
