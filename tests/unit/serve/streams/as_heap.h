// SPDX-License-Identifier: Apache-2.0
// What a heap does with the order of its streams (heap_free.cpp), for tests that have no heap.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

#include "interpose/serve/streams/stream_order.h"

namespace stalloc::test {

// Creates events ahead. Pre: the order's context is current.
inline void create_events(serve::StreamOrder& order, serve::Driver& driver, std::size_t count) {
  std::vector<CUevent> events(count);
  for (CUevent& event : events) {
    if (driver.create_event(&event) != CUDA_SUCCESS) throw std::bad_alloc();
  }
  order.add_events(events);
}

// Makes the waits that were noted. False: one failed.
inline bool make_waits(serve::StreamOrder& order) {
  if (!order.has_waits()) return true;
  serve::StreamOrder::Waits waits = order.take_waits();
  order.make(waits);
  const bool all = waits.all_are_made();
  order.note_made(std::move(waits));
  return all;
}
// Orders the stream after the frees of the bytes. False: that was not possible.
inline bool order_now(serve::StreamOrder& order, serve::PhysicalRanges ranges, serve::StreamOrdinal stream) {
  return order.order(ranges, stream) && make_waits(order);
}

// Frees the bytes. There is an event at the free if `event_now`, or if the free is to have one; `for_others`: other
// streams may get the bytes. `meanwhile` is what other threads do while the event is recorded. Returns the free's
// number.
template <class Meanwhile>
std::uint64_t free_on(serve::StreamOrder& order, serve::PhysicalRanges ranges, serve::StreamOrdinal stream,
                      bool event_now, bool for_others, Meanwhile meanwhile) {
  serve::StreamOrder::EventAtFree event;
  if (event_now || order.wants_event(stream, for_others)) {
    event = order.prepare_event(stream);
    if (event.event != nullptr) order.record(event);
    meanwhile();
  }
  const serve::StreamOrder::HandOver at_free(order, event);
  const std::uint64_t number = order.assign_free_number(stream);
  order.mark_freed(ranges, stream, number);
  return number;
}
inline std::uint64_t free_on(serve::StreamOrder& order, serve::PhysicalRanges ranges, serve::StreamOrdinal stream,
                             bool event_now, bool for_others = false) {
  return free_on(order, ranges, stream, event_now, for_others, [] {});
}

inline void destroy_stream(serve::StreamOrder& order, CUstream stream) {
  auto event = order.prepare_destruction(stream);
  if (!event) return;
  order.find_idle_or_record(*event);
  order.stream_destroyed(*event);
}

}  // namespace stalloc::test
