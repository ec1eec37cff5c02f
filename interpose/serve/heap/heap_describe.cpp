// SPDX-License-Identifier: Apache-2.0
// The description of a heap's memory, range by range, for snapshots.
#include <iterator>
#include <new>
#include <utility>

#include "interpose/serve/heap/heap.h"

namespace stalloc::serve {

// The address of a physical offset in the home view.
CUdeviceptr Heap::home_address(std::uint64_t at) const {
  return at < planned_.planned_bytes() ? planned_.arena()->address(0, at) : dynamic_->home(at);
}

void Heap::describe(Visitor& visitor) noexcept {
  try {
    const CompletingLock lock(*this);
    if (is_closed()) return;
    const Arena* arena = planned_.arena();
    for (std::size_t i = 0; arena != nullptr && i < arena->handle_count(); ++i) {
      const PhysicalRange range = arena->handle_range(i);
      if (arena->is_held(i)) visitor.home(home_address(range.begin), range.bytes());
    }
    if (dynamic_) {
      for (const auto& [at, handle] : dynamic_->handles()) {
        if (!handle.in_arena) visitor.home(home_address(at), handle.bytes);
      }
    }
    live_.for_each([&](const LiveEntry& entry) {
      const PhysicalRanges used = ranges(entry);
      if (used.size() == 1 && home_address(used.front().begin) == entry.address) return;
      visitor.stitched(entry.address, rounded(entry.bytes));
      for (const PhysicalRange& range : used) visitor.used_by_stitched(home_address(range.begin), range.bytes());
    });
  } catch (const std::bad_alloc&) {
    // The description stays incomplete.
  }
}

// Each range of a block may span several handles, which are mapped as a whole.
std::optional<Heap::Backing> Heap::backing(CUdeviceptr address) noexcept {
  try {
    const CompletingLock lock(*this);
    const LiveEntry* entry = live_.find(address);
    if (is_closed() || entry == nullptr) return std::nullopt;
    Backing backing;
    for (const PhysicalRange& range : ranges(*entry)) {
      for (std::uint64_t at = range.begin; at < range.end;) {
        const auto [begin, handle] = handle_at(at);
        if (backing.handles.empty()) backing.offset = at - begin;
        backing.handles.push_back(handle);
        at = begin + handle.bytes;
      }
    }
    return backing;
  } catch (const std::bad_alloc&) {
    return std::nullopt;
  }
}

std::pair<std::uint64_t, MappedHandle> Heap::handle_at(std::uint64_t at) const {
  if (at < planned_.planned_bytes()) {
    const Arena& arena = *planned_.arena();
    const std::size_t handle = arena.handle_at(at);
    const PhysicalRange range = arena.handle_range(handle);
    return {range.begin, {range.bytes(), arena.handle_id(handle)}};
  }
  const auto handle = std::prev(dynamic_->handles().upper_bound(at));
  return {handle->first, {handle->second.bytes, handle->second.id}};
}

}  // namespace stalloc::serve
