// SPDX-License-Identifier: Apache-2.0
// Slots of the plan that live through its body, for requests that come earlier than planned or in another order.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace stalloc::serve {

// Returns the slots before the plan's body that live through all of it (weights, the optimizer's state, workspaces), in
// order. Throws std::bad_alloc.
std::vector<std::uint32_t> slots_through_body(const plan::DevicePlan& plan);

// Those of these slots that were allocated many at a time, as weights and the optimizer's state are, by size. A program
// that resumes from a checkpoint creates the state before its first step, but the recorded program created it in that
// step. The cursor cannot follow that, but a block that is never freed can as well get the place that the plan has for
// it. A workspace is allocated alone and left to its own request, since other requests of its size usually have another
// purpose. Each slot is offered only once, so that a search does not visit taken slots again. Not thread-safe: the
// heap's lock protects it.
class SpareSlots {
 public:
  // Throws std::bad_alloc.
  explicit SpareSlots(const plan::DevicePlan& plan);

  // Calls take(slot) with slots of this size, rounded up to plan::kUnitBytes, until it returns true. Returns false if
  // it never did.
  template <class Take>
  bool offer(std::uint64_t bytes, Take take) {
    SameSize* const same = of_size(bytes);
    if (same == nullptr) return false;
    while (same->next < same->end) {
      if (take(slots_[same->next++])) return true;
    }
    return false;
  }

 private:
  // The slots of one size. slots_[next, end) have not been offered yet.
  struct SameSize {
    std::uint64_t bytes = 0;
    std::uint32_t next = 0;
    std::uint32_t end = 0;
  };
  SameSize* of_size(std::uint64_t bytes) noexcept;

  std::vector<std::uint32_t> slots_;  // indices in the plan, sorted by size, then by index
  std::vector<SameSize> sizes_;       // sorted by size
};

}  // namespace stalloc::serve
