// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/streams/free_events.h"

#include <new>
#include <utility>

namespace stalloc::serve {

const FreeEvent* FreeEvents::first_covering(std::uint64_t number) const noexcept {
  std::size_t first = 0;
  std::size_t last = count_;
  while (first < last) {
    const std::size_t middle = (first + last) / 2;
    if (at(middle).covers < number) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  return first == count_ ? nullptr : &at(first);
}

// False: the limit is reached, or host memory is missing. Pre: all places are in use.
bool FreeEvents::grow() noexcept {
  constexpr std::size_t kFirst = 8;
  if (capacity_ == kMost) return false;
  const std::size_t capacity = capacity_ == 0 ? kFirst : 2 * capacity_;
  std::unique_ptr<FreeEvent[]> ring(new (std::nothrow) FreeEvent[capacity]);
  if (ring == nullptr) return false;
  for (std::size_t i = 0; i < count_; ++i) ring[i] = at(i);
  ring_ = std::move(ring);
  capacity_ = capacity;
  first_ = 0;
  return true;
}

}  // namespace stalloc::serve
