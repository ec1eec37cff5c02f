// SPDX-License-Identifier: Apache-2.0
// Events that were created ahead, or are not needed any more.
#pragma once

#include <cuda.h>

#include <cstddef>
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
  void put(CUevent event) noexcept { events_.push_back(event); }
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

 private:
  std::vector<CUevent> events_;
  std::size_t total_ = 0;
};

}  // namespace stalloc::serve
