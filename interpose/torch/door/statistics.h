// SPDX-License-Identifier: Apache-2.0
// The answer of torch.cuda.memory_stats: the sums of stalloc's half and the native allocator's, and the peaks of these
// sums.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "interpose/torch/door/versions.h"

namespace stalloc::torch::door {

// Of one device. stalloc has no pool of small blocks: all of its half counts as "large". It has no segments of its own
// either that could be split: its memory is mapped, as expandable segments are, which PyTorch does not count. Not
// thread-safe.
class Statistics {
 public:
  void allocated(std::size_t requested, std::size_t bytes, std::uint64_t held) {
    add(kCount, 1);
    add(kBytes, static_cast<std::int64_t>(bytes));
    add(kRequested, static_cast<std::int64_t>(requested));
    holds(held);
  }
  void freed(std::size_t requested, std::size_t bytes) {
    subtract(kCount, 1);
    subtract(kBytes, static_cast<std::int64_t>(bytes));
    subtract(kRequested, static_cast<std::int64_t>(requested));
  }
  // Physical memory of stalloc's for the device.
  void holds(std::uint64_t bytes) {
    const auto held = static_cast<std::int64_t>(bytes);
    Tally& tally = own_[kHeld];
    if (held > tally.current) add(kHeld, held - tally.current);
    if (held < tally.current) subtract(kHeld, tally.current - held);
    note_peaks();
  }
  void retried() { ++retries_; }

  // The native allocator's half is now this.
  void native_is(const DeviceStats& stats) {
    for (std::size_t i = 0; i < kMerged.size(); ++i) {
      for (std::size_t type = 0; type < 2; ++type) native_[i][type] = (stats.*kMerged[i].stat)[kTypes[type]].current;
    }
    note_peaks();
  }
  // Adds stalloc's half.
  void merge_into(DeviceStats* stats) {
    native_is(*stats);
    for (std::size_t i = 0; i < kMerged.size(); ++i) {
      const Tally& own = own_[kMerged[i].tally];
      for (std::size_t type = 0; type < 2; ++type) {
        auto& stat = (stats->*kMerged[i].stat)[kTypes[type]];
        stat.current += own.current;
        stat.allocated += own.allocated;
        stat.freed += own.freed;
        stat.peak = std::max(stat.peak, peaks_[i][type]);
      }
    }
    stats->num_alloc_retries += retries_;
  }

  void reset_accumulated() {
    for (Tally& tally : own_) tally.allocated = tally.freed = 0;
    retries_ = 0;
  }
  void reset_peaks() {
    peaks_ = {};
    note_peaks();
  }
  [[nodiscard]] std::int64_t own_bytes() const { return own_[kBytes].current; }
  [[nodiscard]] std::int64_t bytes() const { return own_[kBytes].current + native_[kAllocatedBytes][0]; }
  [[nodiscard]] std::int64_t reserved() const { return own_[kHeld].current + native_[kReservedBytes][0]; }
  [[nodiscard]] std::int64_t native_reserved() const { return native_[kReservedBytes][0]; }

 private:
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
  enum : std::size_t { kAllocatedBytes = 2, kReservedBytes = 5 };  // of kMerged
  // All of them, and the large ones.
  static constexpr std::array<std::size_t, 2> kTypes = {0, 2};

  void add(std::size_t tally, std::int64_t amount) {
    own_[tally].current += amount;
    own_[tally].allocated += amount;
  }
  void subtract(std::size_t tally, std::int64_t amount) {
    own_[tally].current -= amount;
    own_[tally].freed += amount;
  }
  void note_peaks() {
    for (std::size_t i = 0; i < kMerged.size(); ++i) {
      const std::int64_t own = own_[kMerged[i].tally].current;
      peaks_[i][0] = std::max(peaks_[i][0], own + native_[i][0]);
      peaks_[i][1] = std::max(peaks_[i][1], own + native_[i][1]);
    }
  }

  std::array<Tally, kTallies> own_{};
  std::array<std::array<std::int64_t, 2>, kMerged.size()> native_{};
  std::array<std::array<std::int64_t, 2>, kMerged.size()> peaks_{};
  std::int64_t retries_ = 0;
};

}  // namespace stalloc::torch::door
