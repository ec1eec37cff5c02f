// SPDX-License-Identifier: Apache-2.0
// The events recorded after a stream's frees.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace stalloc::serve {

// An event recorded after the stream's frees up to the number `covers`.
struct FreeEvent {
  CUevent event = nullptr;
  std::uint64_t covers = 0;
  // True: recorded when the program made that free, so no later work of the stream precedes the event.
  bool at_free = false;

  [[nodiscard]] bool is_exactly_after(std::uint64_t free) const noexcept { return at_free && covers == free; }
};

// The events of one stream, in the order of their numbers. It owns no event: StreamOrder creates and destroys them. Not
// thread-safe: the heap's lock protects it. Nothing throws.
class FreeEvents {
 public:
  // Most events that are kept. This is more than a program frees in a few training steps, which is how far the host may
  // run ahead of the device.
  static constexpr std::size_t kMost = 4096;

  // The earliest event recorded after the free with that number; null: there is none. Valid until the next call of
  // `next` or `recorded`.
  [[nodiscard]] const FreeEvent* first_covering(std::uint64_t number) const noexcept;
  [[nodiscard]] const FreeEvent* latest() const noexcept { return count_ == 0 ? nullptr : &at(count_ - 1); }
  template <class Visit>
  void for_each(Visit visit) const {
    for (std::size_t i = 0; i < count_; ++i) visit(at(i));
  }

  // Returns a place for the event to record next; the event is null if the caller has to create it. Returns null when
  // host memory is missing. If all places are in use, `is_complete(event)` is called for one or two events, and events
  // that are complete are dropped. If none is complete, the number of places grows; beyond kMost, the earliest event is
  // dropped.
  template <class IsComplete>
  CUevent* next(IsComplete is_complete) noexcept {
    if (count_ == capacity_ && count_ > 0) {
      const std::size_t half = count_ / 2;
      if (is_complete(at(half - 1))) {
        drop(half);
      } else if (is_complete(at(0))) {
        drop(1);
      }
    }
    if (count_ == capacity_ && !grow()) {
      if (capacity_ == 0) return nullptr;
      drop(1);
    }
    return &at(count_).event;
  }
  // Call when the event that `next` returned was recorded. Pre: `covers` is greater than at the previous call.
  const FreeEvent& recorded(std::uint64_t covers, bool at_free) noexcept {
    FreeEvent& event = at(count_++);
    event.covers = covers;
    event.at_free = at_free;
    return event;
  }

  // Visits every event that was created, including those that can be recorded again.
  template <class Visit>
  void for_each_created(Visit visit) const {
    for (std::size_t i = 0; i < capacity_; ++i) {
      if (ring_[i].event != nullptr) visit(ring_[i].event);
    }
  }

 private:
  // A ring buffer. The events that are not in use, after those in use, can be recorded again.
  [[nodiscard]] FreeEvent& at(std::size_t index) const noexcept { return ring_[(first_ + index) & (capacity_ - 1)]; }
  void drop(std::size_t earliest) noexcept {
    first_ = (first_ + earliest) & (capacity_ - 1);
    count_ -= earliest;
  }
  bool grow() noexcept;

  std::unique_ptr<FreeEvent[]> ring_;
  std::size_t capacity_ = 0;  // a power of two
  std::size_t first_ = 0;
  std::size_t count_ = 0;
};

}  // namespace stalloc::serve
