// SPDX-License-Identifier: Apache-2.0
#include "plan/running/late_handles.h"

#include <algorithm>
#include <map>
#include <utility>

#include "plan/problem.h"

namespace stalloc::plan {
namespace {

// For each handle the request of the body that uses it first; the number of slots for a handle that none uses. A view
// is mapped as a whole, so a slot in a stitched view uses all of its handles.
std::vector<std::size_t> first_uses(const DevicePlan& plan) {
  std::vector<std::size_t> uses(plan.handles.size(), plan.slots.size());
  std::map<std::uint64_t, std::size_t> unused;  // the handles that no slot has used yet, by their end in the home view
  std::uint64_t end = 0;
  for (std::size_t handle = 0; handle < plan.handles.size(); ++handle) unused[end += plan.handles[handle]] = handle;
  std::vector<bool> is_mapped(plan.views.size());
  for (std::size_t i = 0; i < plan.slots.size(); ++i) {
    const Slot& slot = plan.slots[i];
    if (slot.kind == SlotKind::PassThrough || slot.size == 0) continue;
    if (slot.view > 0 && !is_mapped[slot.view]) {
      is_mapped[slot.view] = true;
      for (const std::uint32_t handle : plan.views[slot.view].handles) uses[handle] = std::min(uses[handle], i);
    }
    if (slot.view > 0) continue;
    auto next = unused.upper_bound(slot.offset);
    while (next != unused.end() && next->first - plan.handles[next->second] < slot.offset + slot.size) {
      uses[next->second] = std::min(uses[next->second], i);
      next = unused.erase(next);
    }
  }
  return uses;
}

// The blocks that live across the beginning of a step: before which of its requests each is freed, and its bytes.
// Sorted.
std::vector<std::pair<std::size_t, std::uint64_t>> blocks_of_step_before(const DevicePlan& plan) {
  std::vector<std::pair<std::size_t, std::uint64_t>> blocks;
  for (std::size_t i = 0; i < plan.slots.size(); ++i) {
    const Slot& slot = plan.slots[i];
    if (slot.kind == SlotKind::PassThrough || slot.upper == kNever) continue;
    const std::uint64_t freed = i + (slot.upper - slot.lower);
    if (freed > plan.slots.size()) blocks.emplace_back(freed - plan.slots.size(), slot.size);
  }
  std::sort(blocks.begin(), blocks.end());
  return blocks;
}

}  // namespace

LateHandles choose_late_handles(const DevicePlan& plan) {
  const std::vector<std::size_t> uses = first_uses(plan);
  std::vector<std::pair<std::size_t, std::uint64_t>> handles;  // by their first use
  for (std::size_t i = 0; i < uses.size(); ++i) handles.emplace_back(uses[i], plan.handles[i]);
  std::sort(handles.begin(), handles.end());
  const auto blocks = blocks_of_step_before(plan);
  std::uint64_t living = 0;
  for (const auto& [freed, bytes] : blocks) living += bytes;
  const std::uint64_t all = living;

  LateHandles best;
  std::uint64_t least = all + plan.physical_bytes;  // held if no handle is late
  std::uint64_t created = 0;
  auto next = handles.begin();
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::size_t from = blocks[i].first;
    living -= blocks[i].second;
    if (i + 1 < blocks.size() && blocks[i + 1].first == from) continue;
    for (; next != handles.end() && next->first < from; ++next) created += next->second;
    const std::uint64_t held = std::max(all + created, living + plan.physical_bytes);
    if (held >= least || from >= plan.slots.size()) continue;
    least = held;
    best.from = from;
    best.bytes = plan.physical_bytes - created;
    best.ended_bytes = all - living;
  }
  if (best.from == 0) return best;
  best.is_late.resize(plan.handles.size());
  for (std::size_t i = 0; i < uses.size(); ++i) best.is_late[i] = uses[i] >= best.from;
  return best;
}

}  // namespace stalloc::plan
