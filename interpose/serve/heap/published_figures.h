// SPDX-License-Identifier: Apache-2.0
// The figures of one device in memory that other processes can read while the program runs.
#pragma once

#include <atomic>
#include <cstdint>

namespace stalloc::serve {

// Written by one thread at a time, with the heap's lock held, and read by any process. Each number is read as a whole,
// but numbers that are read one after another may belong to different moments. statistics.def gives meanings and units.
// This is part of a file format (docs/formats.md, "Statistics page"): numbers are only added at the end.
struct alignas(64) PublishedFigures {
  using Number = std::atomic<std::uint64_t>;

  // `served` is 1 if the device has or had a heap; otherwise all numbers are 0. `device_bytes` is the memory of the
  // card; 0: the driver did not report it. `unused` is 0. The numbers that requests and frees change are in the first
  // cache line.

  // written by tools/write-statistics: begin
  Number served;
  Number live;
  Number live_peak;
  Number served_live_peak;
  Number planned_requests;
  Number dynamic_requests;
  Number unplanned_requests;
  Number physical;
  Number physical_peak;
  Number mapping_calls_at_start;
  Number mapping_calls_after_start;
  Number misses;
  Number device_bytes;
  Number unused[19];
  // end

  static void set(Number* number, std::uint64_t value) noexcept { number->store(value, std::memory_order_relaxed); }
};
static_assert(sizeof(PublishedFigures) == 256);
static_assert(PublishedFigures::Number::is_always_lock_free);

}  // namespace stalloc::serve
