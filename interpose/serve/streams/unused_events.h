// SPDX-License-Identifier: Apache-2.0
// Events that were created ahead, or are not needed any more.
//
// An event is pinned while a thread is about to let a stream wait for it. If the event is put here meanwhile, it is not
// used again until it is unpinned: the stream would wait for its next record.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

namespace stalloc::serve {

// Owns no event: StreamOrder creates and destroys them. Not thread-safe: the heap's lock protects it.
class UnusedEvents {
 public:
  [[nodiscard]] std::size_t size() const noexcept { return events_.size(); }
  // The unused ones, and those that will be put back; not those that `remove` gave away.
  [[nodiscard]] std::size_t total() const noexcept { return total_; }
  // Makes room for more events. Throws std::bad_alloc.
  void grow(std::size_t more) {
    events_.reserve(total_ + more);
    total_ += more;
  }
  // Pre: there is room.
  void put(CUevent event) noexcept {
    if (!pins_.empty()) [[unlikely]] {
      if (const auto pin = find_pin(event); pin != pins_.end()) {
        pin->is_put = true;
        return;
      }
    }
    events_.push_back(event);
  }
  // Null: there is none.
  CUevent take() noexcept {
    if (events_.empty()) return nullptr;
    const CUevent event = events_.back();
    events_.pop_back();
    return event;
  }

  // The same for an event that will not be put back, so its room goes, too.
  CUevent remove() noexcept {
    const CUevent event = take();
    if (event != nullptr) --total_;
    return event;
  }

  // Each `pin` that returned true needs an `unpin`, unless `unpin_all` was called. False: host memory is missing.
  [[nodiscard]] bool pin(CUevent event) noexcept {
    if (const auto pin = find_pin(event); pin != pins_.end()) return ++pin->times != 0;
    try {
      pins_.push_back({.event = event});
    } catch (const std::bad_alloc&) {
      return false;
    }
    return true;
  }
  void unpin(CUevent event) noexcept {
    const auto pin = find_pin(event);
    if (pin == pins_.end() || --pin->times > 0) return;
    if (pin->is_put) events_.push_back(event);
    *pin = pins_.back();
    pins_.pop_back();
  }
  void unpin_all() noexcept {
    for (const Pin& pin : pins_) {
      if (pin.is_put) events_.push_back(pin.event);
    }
    pins_.clear();
  }

 private:
  struct Pin {
    CUevent event = nullptr;
    std::uint32_t times = 1;
    bool is_put = false;  // when it is unpinned, it is unused
  };
  [[nodiscard]] std::vector<Pin>::iterator find_pin(CUevent event) noexcept {
    return std::find_if(pins_.begin(), pins_.end(), [event](const Pin& pin) { return pin.event == event; });
  }

  std::vector<CUevent> events_;
  std::vector<Pin> pins_;  // nearly always empty
  std::size_t total_ = 0;
};

}  // namespace stalloc::serve
