// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/planned/spare_slots.h"

#include <algorithm>
#include <cstddef>

namespace stalloc::serve {
namespace {

// Three weights with Adam's two states each make six slots or more. A few workspaces with a counter or two are fewer.
constexpr std::size_t kMany = 6;

std::uint64_t bytes_of(const plan::Slot& slot) { return plan::round_up(slot.size, plan::kUnitBytes); }

// True if slots[i] is one of kMany consecutive elements of `slots` with at most kMany other slots of the plan between
// the first and the last of them.
bool is_one_of_many(const std::vector<std::uint32_t>& slots, std::size_t i) {
  const std::size_t first = i + 1 - std::min(i + 1, kMany);
  for (std::size_t begin = first; begin <= i && begin + kMany <= slots.size(); ++begin) {
    if (slots[begin + kMany - 1] - slots[begin] < 2 * kMany) return true;
  }
  return false;
}

bool has_place(const plan::Slot& slot) {
  return slot.kind == plan::SlotKind::Static || slot.kind == plan::SlotKind::Persistent;
}

}  // namespace

std::vector<std::uint32_t> slots_through_body(const plan::DevicePlan& plan) {
  std::vector<std::uint32_t> slots;
  if (plan.body == 0) return slots;
  const std::uint64_t body_end = std::uint64_t{plan.prologue} + plan.body;
  for (std::uint32_t slot = 0; slot < plan.prologue; ++slot) {
    if (has_place(plan.slots[slot]) && plan.slots[slot].upper >= body_end) slots.push_back(slot);
  }
  return slots;
}

SpareSlots::SpareSlots(const plan::DevicePlan& plan) {
  const std::vector<std::uint32_t> all = slots_through_body(plan);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (is_one_of_many(all, i)) slots_.push_back(all[i]);
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
