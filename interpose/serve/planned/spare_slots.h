// SPDX-License-Identifier: Apache-2.0
// Slots of the plan that live through its body, and requests for them that come earlier than planned, or in another
// order.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace stalloc::serve {

// The slots before the plan's body that live through all of it (weights, the optimizer's state, workspaces), in order.
// Throws std::bad_alloc.
std::vector<std::uint32_t> slots_through_body(const plan::DevicePlan& plan);

// Those of them that were made many at a time, as weights and the optimizer's state are, by size. A program that
// resumes from a checkpoint makes the state before its first step, where the recorded one made it in that step: no
// cursor follows that, but what is never freed can as well have the place that the plan keeps for it. A workspace,
// which comes alone, is better left to its own request: others of its size are mostly not of its kind. Each slot is
// offered once, so that a search does not see those taken before. Not thread-safe.
class SpareSlots {
 public:
  // Throws std::bad_alloc.
  explicit SpareSlots(const plan::DevicePlan& plan);

  // Calls take(slot) with slots of `bytes`, rounded up to plan::kUnitBytes, until it returns true. False: it never did.
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
  // Those of slots_[next, end) were not offered yet.
  struct SameSize {
    std::uint64_t bytes = 0;
    std::uint32_t next = 0;
    std::uint32_t end = 0;
  };
  SameSize* of_size(std::uint64_t bytes) noexcept;

  std::vector<std::uint32_t> slots_;  // indices in the plan, by size and index
  std::vector<SameSize> sizes_;       // by size
};

}  // namespace stalloc::serve
