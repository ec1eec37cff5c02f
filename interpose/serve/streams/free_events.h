// SPDX-License-Identifier: Apache-2.0
// The events that stand behind a stream's frees.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace stalloc::serve {

// An event behind the stream's frees up to a number.
struct FreeEvent {
  CUevent event = nullptr;
  std::uint64_t covers = 0;
  // It was recorded when the program made that free, so that no work stands before it that the stream was given later.
  bool at_free = false;

  [[nodiscard]] bool is_exactly_after(std::uint64_t free) const noexcept { return at_free && covers == free; }
};

// Those of one stream, in the order of their numbers. Not thread-safe: the heap's lock covers it.
class FreeEvents {
 public:
  // More than a program frees in a few training steps, which is how far its host may run ahead of the device.
  static constexpr std::size_t kMost = 4096;

  // The earliest one behind the free with that number; null: there is none. Valid until the next call that records.
  [[nodiscard]] const FreeEvent* first_covering(std::uint64_t number) const noexcept;
  [[nodiscard]] const FreeEvent* latest() const noexcept { return count_ == 0 ? nullptr : &at(count_ - 1); }
  template <class Visit>
  void for_each(Visit visit) const {
    for (std::size_t i = 0; i < count_; ++i) visit(at(i));
  }

  // The event to record next, null if it has yet to be created; nothing is returned for want of host memory. Where all
  // places are in use, `is_complete(event)` is asked about one or two of them, those that are over make room, and if
  // none is, there are more places; when there are kMost, the earliest one makes room.
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
  // The event that `next` returned was recorded. Pre: `covers` is greater than before.
  const FreeEvent& recorded(std::uint64_t covers, bool at_free) noexcept {
    FreeEvent& event = at(count_++);
    event.covers = covers;
    event.at_free = at_free;
    return event;
  }

  // Every event that was created, recorded or not.
  template <class Visit>
  void for_each_created(Visit visit) const {
    for (std::size_t i = 0; i < capacity_; ++i) {
      if (ring_[i].event != nullptr) visit(ring_[i].event);
    }
  }

 private:
  // A ring: behind those that are in use lie events that can be recorded anew.
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
