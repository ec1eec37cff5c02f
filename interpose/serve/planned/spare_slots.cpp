// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/planned/spare_slots.h"

#include <algorithm>
#include <cstddef>

namespace stalloc::serve {
namespace {

std::uint64_t bytes_of(const plan::Slot& slot) { return plan::round_up(slot.size, plan::kUnitBytes); }

bool has_place(const plan::Slot& slot) {
  return slot.kind == plan::SlotKind::Static || slot.kind == plan::SlotKind::Persistent;
}

}  // namespace

SpareSlots::SpareSlots(const plan::DevicePlan& plan) {
  if (plan.body == 0) return;
  const std::uint64_t body_end = std::uint64_t{plan.prologue} + plan.body;
  for (std::uint32_t slot = 0; slot < plan.prologue; ++slot) {
    if (has_place(plan.slots[slot]) && plan.slots[slot].upper >= body_end) slots_.push_back(slot);
  }
  std::stable_sort(slots_.begin(), slots_.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return bytes_of(plan.slots[a]) < bytes_of(plan.slots[b]); });
  for (std::uint32_t i = 0; i < slots_.size(); ++i) {
    const std::uint64_t bytes = bytes_of(plan.slots[slots_[i]]);
    if (sizes_.empty() || sizes_.back().bytes != bytes) sizes_.push_back({bytes, i, i});
    ++sizes_.back().end;
  }
}

SpareSlots::SameSize* SpareSlots::of_size(std::uint64_t bytes) noexcept {
  const std::uint64_t rounded = plan::round_up(bytes, plan::kUnitBytes);
  const auto at = std::lower_bound(sizes_.begin(), sizes_.end(), rounded,
                                   [](const SameSize& same, std::uint64_t size) { return same.bytes < size; });
  return at != sizes_.end() && at->bytes == rounded ? &*at : nullptr;
}

}  // namespace stalloc::serve
