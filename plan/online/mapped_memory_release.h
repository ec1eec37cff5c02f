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
std::uint64_t MappedMemory<Backend>::release_idle(std::uint64_t keep, bool of_arena) {
  const std::uint64_t released = release_until(keep, of_arena);
  given_back_ += released;
  return released;
}

template <OnlineBackend Backend>
bool MappedMemory<Backend>::has_free_handle(bool of_arena) const {
  return std::any_of(placement_.handles().begin(), placement_.handles().end(), [&](const auto& handle) {
    return (!handle.second.in_arena || of_arena) && !is_kept(range_of(handle)) && placement_.is_free(range_of(handle));
  });
}

// Does what `release_idle` does, but does not count the bytes as given back: they are wanted for something else.
template <OnlineBackend Backend>
std::uint64_t MappedMemory<Backend>::release_until(std::uint64_t keep, bool of_arena) {
  std::vector<Candidate> handles;
  for (const auto& handle : placement_.handles()) {
    if (!handle.second.in_arena || of_arena) handles.push_back({range_of(handle)});
  }
  std::vector<std::uint64_t> idle = releasable(std::move(handles), Views::All);
  std::uint64_t released = 0;
  for (; !idle.empty() && placement_.physical_bytes() > keep; idle.pop_back()) released += release(idle.back());
  return released;
}

template <OnlineBackend Backend>
std::uint64_t MappedMemory<Backend>::release_handles(Ranges freed, std::uint32_t view) {
  if (view != 0 && is_idle(view)) unmap_view(view);
  std::vector<Candidate> handles;
  for (const Range& range : freed) {
    auto handle = placement_.handles().upper_bound(range.begin);
    if (handle != placement_.handles().begin()) --handle;
    for (; handle != placement_.handles().end() && handle->first < range.end; ++handle) {
      if (handle->first + handle->second.bytes <= range.begin || handle->second.in_arena) continue;
      handles.push_back({range_of(*handle)});
    }
  }
  const auto is_before = [](const Candidate& a, const Candidate& b) { return a.range.begin < b.range.begin; };
  const auto is_same = [](const Candidate& a, const Candidate& b) { return a.range.begin == b.range.begin; };
  std::sort(handles.begin(), handles.end(), is_before);
  handles.erase(std::unique(handles.begin(), handles.end(), is_same), handles.end());
  std::uint64_t released = 0;
  for (const std::uint64_t at : releasable(std::move(handles), Views::All)) released += release(at);
  given_back_ += released;
  return released;
}

template <OnlineBackend Backend>
std::uint64_t MappedMemory<Backend>::reclaim(std::uint64_t bytes, bool of_arena) {
  const std::uint64_t held = placement_.physical_bytes();
  const std::uint64_t keep = held - std::min(held, round_up(bytes, placement_.page()));
  std::uint64_t released = release_until(keep, of_arena);
  if (placement_.physical_bytes() <= keep) return released;
  unmap_idle_views();
  released += release_until(keep, of_arena);
  if (placement_.physical_bytes() <= keep || !keeps_plan()) return released;
  forget_plan();
  unmap_idle_views();
  return released + release_until(keep, of_arena);
}

template <OnlineBackend Backend>
bool MappedMemory<Backend>::release_small(std::uint64_t bytes, std::uint64_t largest) {
  struct Small {
    Range range;
    bool in_idle_view = false;
    bool in_used_view = false;
    bool is_chosen = false;
  };
  std::vector<Small> small;  // handles that are wholly free, by physical offset
  std::uint64_t free = 0;
  for (const auto& handle : placement_.handles()) {
    const Range range = range_of(handle);
    if (range.bytes() > largest || handle.second.in_arena || !placement_.is_free(range)) continue;
    small.push_back({range});
    free += range.bytes();
  }
  if (free < bytes) return false;
  for (std::uint32_t view = 1; view <= placement_.views().numbers(); ++view) {
    const bool idle = is_idle(view);
    for_each_shown(view, small, [idle](Small& shown) { (idle ? shown.in_idle_view : shown.in_used_view) = true; });
  }
  std::uint64_t chosen = 0;
  for (const bool in_view : {false, true}) {
    for (Small& handle : small) {
      if (chosen >= bytes) break;
      if (handle.in_used_view || handle.in_idle_view != in_view || !is_idle_handle(handle.range)) continue;
      handle.is_chosen = true;
      chosen += handle.range.bytes();
    }
  }
  if (chosen < bytes) return false;
  for (std::uint32_t view = 1; view <= placement_.views().numbers(); ++view) {
    bool shows = false;
    for_each_shown(view, small, [&shows](const Small& shown) { shows = shows || shown.is_chosen; });
    if (shows && !unmap_view(view)) return false;
  }
  std::uint64_t released = 0;
  for (const Small& handle : small) {
    if (handle.is_chosen) released += release(handle.range.begin);
  }
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
    const auto handle = placement_.handles().find(at);  // no handle begins at a later page of a larger one
    if (released >= grown || handle == placement_.handles().end()) continue;
    if (is_idle_handle(range_of(*handle))) released += release(at);
  }
}

// True when nothing lives on the handle at these offsets, no work is pending on it, and it is not the memory of a plan
// that is kept.
template <OnlineBackend Backend>
bool MappedMemory<Backend>::is_idle_handle(Range range) {
  return !is_kept(range) && placement_.is_free(range) && backend_.is_complete({&range, 1});
}

// Those of these handles, which are in ascending order, that are idle and that none of the views shows.
template <OnlineBackend Backend>
std::vector<std::uint64_t> MappedMemory<Backend>::releasable(std::vector<Candidate> handles, Views views) {
  std::erase_if(handles, [this](const Candidate& handle) { return !placement_.is_free(handle.range); });
  for (std::uint32_t view = 1; view <= placement_.views().numbers() && !handles.empty(); ++view) {
    if (views == Views::OfStepPlan && !placement_.views()[view].of_step_plan) continue;
    for_each_shown(view, handles, [](Candidate& shown) { shown.is_shown = true; });
  }
  std::vector<std::uint64_t> found;
  for (const Candidate& handle : handles) {
    if (!handle.is_shown && is_idle_handle(handle.range)) found.push_back(handle.range.begin);
  }
  return found;
}

// Releases the handle at a physical offset. Returns its bytes; 0 if the backend refuses.
template <OnlineBackend Backend>
std::uint64_t MappedMemory<Backend>::release(std::uint64_t at) {
  const HandlePlacement::Handle handle = placement_.handles().at(at);
  placement_.prepare_removal(at);
  if (!backend_.destroy(at, {handle.bytes, handle.id})) return 0;
  placement_.remove_handle(at);
  return handle.bytes;
}

}  // namespace stalloc::plan
