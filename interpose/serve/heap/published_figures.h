// SPDX-License-Identifier: Apache-2.0
// One device's figures where other processes can read them while the program runs.
#pragma once

#include <atomic>
#include <cstdint>

namespace stalloc::serve {

// Written by one thread at a time, under the heap's lock, and read by anybody: each number is whole, but numbers that
// are read one after the other may be of two moments. Meanings and units are in statistics.def. Part of a file format
// (docs/formats.md, "Statistics page"): numbers are only ever added at the end.
struct alignas(64) PublishedFigures {
  using Number = std::atomic<std::uint64_t>;

  // `served`: 1: the device has a heap; 0: it never had, and all else is 0. `device_bytes`: of the card; 0: the driver
  // did not say. `unused`: 0. What a request and a free change is in the first cache line.
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
