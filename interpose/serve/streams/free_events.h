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
  // `add` or `drop_complete`.
  [[nodiscard]] const FreeEvent* first_covering(std::uint64_t number) const noexcept;
  [[nodiscard]] const FreeEvent* latest() const noexcept { return count_ == 0 ? nullptr : &at(count_ - 1); }
  template <class Visit>
  void for_each(Visit visit) const {
    for (std::size_t i = 0; i < count_; ++i) visit(at(i));
  }

  [[nodiscard]] std::size_t count() const noexcept { return count_; }

  // Drops events that are complete: calls `is_complete(event)` for one or two of them, and `drop(event)` for each that
  // is dropped.
  template <class IsComplete, class Drop>
  void drop_complete(IsComplete is_complete, Drop drop) noexcept {
    if (count_ == 0) return;
    const std::size_t half = (count_ + 1) / 2;
    if (is_complete(at(half - 1))) {
      drop_earliest(half, drop);
    } else if (half > 1 && is_complete(at(0))) {
      drop_earliest(1, drop);
    }
  }
  // Drops the earliest event, if there is one.
  template <class Drop>
  void drop_first(Drop drop) noexcept {
    if (count_ > 0) drop_earliest(1, drop);
  }
  // True if another event needs more memory than there is: a good moment to drop events.
  [[nodiscard]] bool is_full() const noexcept { return count_ == capacity_; }

  // Adds an event that was recorded. Pre: `event.covers` is greater than at the previous call. Beyond kMost, or when
  // host memory is missing, the earliest event is dropped. False: it was not added, as there is no host memory at all.
  template <class Drop>
  bool add(const FreeEvent& event, Drop drop) noexcept {
    if (count_ == capacity_ && !grow()) {
      if (capacity_ == 0) return false;
      drop_earliest(1, drop);
    }
    at(count_++) = event;
    return true;
  }

 private:
  // A ring buffer.
  [[nodiscard]] FreeEvent& at(std::size_t index) const noexcept { return ring_[(first_ + index) & (capacity_ - 1)]; }
  template <class Drop>
  void drop_earliest(std::size_t count, Drop drop) noexcept {
    for (std::size_t i = 0; i < count; ++i) drop(at(i).event);
    first_ = (first_ + count) & (capacity_ - 1);
    count_ -= count;
  }
  bool grow() noexcept;

  std::unique_ptr<FreeEvent[]> ring_;
  std::size_t capacity_ = 0;  // a power of two
  std::size_t first_ = 0;
  std::size_t count_ = 0;
};

}  // namespace stalloc::serve
