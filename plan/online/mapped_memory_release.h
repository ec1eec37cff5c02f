// SPDX-License-Identifier: Apache-2.0
// MappedMemory: releasing handles to the device. Included at the end of mapped_memory.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "plan/online/mapped_memory.h"
#include "plan/placement/units.h"

namespace stalloc::plan {

template <OnlineBackend Backend>
std::uint64_t MappedMemory<Backend>::release_idle(std::uint64_t keep, bool of_plan) {
  const std::uint64_t released = release_until(keep, of_plan);
  given_back_ += released;
  return released;
}

// Does what `release_idle` does, but does not count the bytes as given back: they are wanted for something else.
template <OnlineBackend Backend>
std::uint64_t MappedMemory<Backend>::release_until(std::uint64_t keep, bool of_plan) {
  const FreeSpace shown = shown_in_views();
  std::vector<std::uint64_t> idle;
  for (const auto& handle : placement_.handles()) {
    if ((!handle.second.planned || of_plan) && can_be_released(handle, shown)) idle.push_back(handle.first);
  }
  std::uint64_t released = 0;
  for (; !idle.empty() && placement_.physical_bytes() > keep; idle.pop_back()) released += release(idle.back());
  return released;
}

template <OnlineBackend Backend>
std::uint64_t MappedMemory<Backend>::release_handles(Ranges freed, std::uint32_t view) {
  if (view != 0 && is_idle(view)) unmap_view(view);
  const FreeSpace shown = shown_in_views();
  std::vector<std::uint64_t> idle;
  for (const Range& range : freed) {
    auto handle = placement_.handles().upper_bound(range.begin);
    if (handle != placement_.handles().begin()) --handle;
    for (; handle != placement_.handles().end() && handle->first < range.end; ++handle) {
      if (handle->first + handle->second.bytes <= range.begin || handle->second.planned) continue;
      if (can_be_released(*handle, shown)) idle.push_back(handle->first);
    }
  }
  std::sort(idle.begin(), idle.end());
  idle.erase(std::unique(idle.begin(), idle.end()), idle.end());
  std::uint64_t released = 0;
  for (const std::uint64_t at : idle) released += release(at);
  given_back_ += released;
  return released;
}

template <OnlineBackend Backend>
std::uint64_t MappedMemory<Backend>::reclaim(std::uint64_t bytes, bool of_plan) {
  const std::uint64_t held = placement_.physical_bytes();
  const std::uint64_t keep = held - std::min(held, round_up(bytes, placement_.page()));
  std::uint64_t released = release_until(keep, of_plan);
  if (placement_.physical_bytes() <= keep) return released;
  unmap_idle_views();
  released += release_until(keep, of_plan);
  if (placement_.physical_bytes() <= keep || !keeps_plan()) return released;
  forget_plan();
  unmap_idle_views();
  return released + release_until(keep, of_plan);
}

template <OnlineBackend Backend>
bool MappedMemory<Backend>::release_small(std::uint64_t bytes, std::uint64_t largest) {
  FreeSpace in_use;  // shown in views in use
  FreeSpace idle;    // shown in others
  for (std::uint32_t view = 1; view <= placement_.views().numbers(); ++view) {
    FreeSpace& shown = is_idle(view) ? idle : in_use;
    for (const Range& piece : placement_.views()[view].stitched.pieces()) shown.add(piece);
  }
  std::vector<Range> chosen;
  std::uint64_t found = 0;
  for (const bool in_view : {false, true}) {
    for (const auto& handle : placement_.handles()) {
      const Range range{handle.first, handle.first + handle.second.bytes};
      if (found >= bytes) break;
      if (range.bytes() > largest || handle.second.planned || overlaps(idle, range) != in_view) continue;
      if (!can_be_released(handle, in_use)) continue;
      chosen.push_back(range);
      found += range.bytes();
    }
  }
  if (found < bytes) return false;
  FreeSpace given_back;
  for (const Range& range : chosen) given_back.add(range);
  for (std::uint32_t view = 1; view <= placement_.views().numbers(); ++view) {
    const std::vector<Range>& pieces = placement_.views()[view].stitched.pieces();
    const bool shows =
        std::any_of(pieces.begin(), pieces.end(), [&](Range piece) { return overlaps(given_back, piece); });
    if (shows && !unmap_view(view)) return false;
  }
  std::uint64_t released = 0;
  for (const Range& range : chosen) released += release(range.begin);
  return released >= bytes;
}

// Called before memory for large requests grows by `grown` bytes. If more than ever would then be held, releases up to
// as many bytes in free pages for small requests, if there are enough of these to be worth the mapping calls.
template <OnlineBackend Backend>
void MappedMemory<Backend>::release_idle_small(std::uint64_t grown) {
  if (placement_.physical_bytes() + grown <= placement_.peak_physical_bytes()) return;
  const std::vector<std::uint64_t> pages = placement_.free_pages_for_small();
  const std::uint64_t divisor = placement_.policy().held_per_small;
  if (divisor == 0 || pages.size() * placement_.page() <= placement_.physical_bytes() / divisor) return;
  backend_.poll_frees();
  std::uint64_t released = 0;
  for (const std::uint64_t at : pages) {
    const Range page{at, at + placement_.page()};
    if (released < grown && backend_.is_complete({&page, 1})) released += release(at);
  }
}

// True when nothing lives on the handle, no work is pending on it, no view shows it, and it is not the memory of a plan
// that is kept; `shown` is what views show.
template <OnlineBackend Backend>
bool MappedMemory<Backend>::can_be_released(const Handles::value_type& handle, const FreeSpace& shown) {
  const Range range{handle.first, handle.first + handle.second.bytes};
  if (range.begin >= plan_.begin && range.begin < plan_.end) return false;
  return !overlaps(shown, range) && placement_.is_free(range) && backend_.is_complete({&range, 1});
}

// Releases the handle at a physical offset. Returns its bytes; 0 if the backend refuses.
template <OnlineBackend Backend>
std::uint64_t MappedMemory<Backend>::release(std::uint64_t at) {
  const HandlePlacement::Handle handle = placement_.handles().at(at);
  if (!backend_.destroy(at, {handle.bytes, handle.id})) return 0;
  placement_.remove_handle(at);
  return handle.bytes;
}

}  // namespace stalloc::plan
