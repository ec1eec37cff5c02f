// SPDX-License-Identifier: Apache-2.0
// The online allocator's physical memory and its mappings: creates, maps, unmaps and releases what the placement
// proposes, and keeps the placement in agreement with what the backend has mapped.
//
// Physical memory consists of handles. Each handle is mapped at its place in the home view, and may also be shown by
// stitched views, which have addresses in a range of their own. Nothing is unmapped or released while pending work may
// use it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "plan/online/handle_placement.h"
#include "plan/online/online_backend.h"
#include "plan/placement/units.h"
#include "plan/plan.h"

namespace stalloc::plan {

// Whether the space has free bytes in the range.
inline bool overlaps(const FreeSpace& space, Range range) {
  const auto next = space.at_or_after(range.begin);
  return next && next->begin < range.end;
}

// What an online allocator has done so far.
struct OnlineCounts {
  std::uint64_t view_hits = 0;   // requests served in a view made before
  std::uint64_t views = 0;       // stitched views made
  std::uint64_t lengthened = 0;  // times that a view was lengthened
  std::uint64_t repaired = 0;    // times that handles of an idle view were exchanged for others
  std::uint64_t mapped = 0;      // handles mapped for any of these
  std::uint64_t handles = 0;     // handles created
  std::uint64_t grows = 0;       // requests for which new memory was created
  std::uint64_t borrows = 0;     // requests served from bytes that another stream freed
};

// All sizes are in bytes. Not thread-safe: in the library the heap's lock covers it. Functions throw only for want of
// host memory (std::bad_alloc).
template <OnlineBackend Backend>
class MappedMemory {
 public:
  using Handle = typename Backend::Handle;
  using Ranges = std::span<const Range>;
  using Proposal = HandlePlacement::Proposal;

  // `view_bytes`: how many addresses the backend has for stitched views.
  MappedMemory(const HandlePlacement::Options& options, std::uint64_t view_bytes, Backend backend)
      : backend_(std::move(backend)), placement_(options) {
    view_addresses_.add({0, view_bytes});
  }

  // --- Carrying out proposals ---

  // Creates and maps what a proposal needs, and returns the place of its request, which is not taken yet. Returns
  // nothing, with everything undone, if the backend refuses. New bytes are free for `stream`. Pre: the free bytes of
  // the proposal may be used already.
  std::optional<Place> carry_out(const Proposal& proposal, StreamIndex stream);
  // Undoes `carry_out`. Pre: the place that it returned was not taken.
  void undo(const Proposal& proposal, Place place);
  // Unmaps the parts of an idle view that are exchanged, and maps their replacements. Returns the place of the request.
  // If a part cannot be exchanged, removes the view and returns nothing.
  std::optional<Place> carry_out(const HandlePlacement::Repair& repair);

  // How many handles the pieces consist of.
  [[nodiscard]] std::size_t handle_count(Ranges pieces) const;

  // --- Stitched views, by number ---

  // The address at which a view begins.
  [[nodiscard]] static VirtualAddress begin_of(const ViewCache::CachedView& view) noexcept {
    return {VirtualAddress::Space::Views, view.at};
  }
  // The address `bytes` behind another one.
  [[nodiscard]] static VirtualAddress behind(VirtualAddress begin, std::uint64_t bytes) noexcept {
    return {begin.space, begin.offset + bytes};
  }
  // True when nothing lives in the view, and the device is known to have finished with earlier blocks in it. Uses of
  // its bytes at other addresses do not matter. False for a number that no view has.
  [[nodiscard]] bool is_idle(std::uint32_t view) noexcept;
  // Unmaps and removes a view. False: something of it is still mapped. Pre: it is idle, or nothing was placed in it
  // yet.
  bool unmap_view(std::uint32_t view);
  // Unmaps the views, and parts of views, in which nothing lives and which no pending work may use.
  void unmap_idle_views();
  // Makes room for another view of `bytes` in number and addresses: removes the least recently used views if they are
  // idle. False: there is no room.
  bool make_room_for_view(std::uint64_t bytes);

  // --- Releasing handles to the device, only if no pending work uses them ---

  // Releases handles that are wholly free, whose frees are complete, and that no view maps, until `keep` bytes are
  // held; handles of the plan only if `of_plan`. Returns the bytes released.
  std::uint64_t release_idle(std::uint64_t keep, bool of_plan);
  // The same for just the handles that these ranges lie in, those of the plan excepted. First unmaps `view` if it is
  // idle (0: there is none), which showed them.
  std::uint64_t release_handles(Ranges freed, std::uint32_t view);
  // Releases memory for a request of `bytes`, no more than it needs: idle handles that no view maps, then idle views
  // and their handles. Returns the bytes released.
  std::uint64_t reclaim(std::uint64_t bytes, bool of_plan);
  // Releases idle handles of at most `largest` bytes each until they hold `bytes` together, and unmaps the idle views
  // that show them. False when there are too few, in which case nothing is released, or when the backend refuses.
  bool release_small(std::uint64_t bytes, std::uint64_t largest);

  // --- The memory of a plan that is made while the program runs (plan/running) ---

  // Bytes in handles for large requests that could be released now, after `unmap_idle_views`.
  [[nodiscard]] std::uint64_t idle_bytes();
  // Where the memory of a plan lies.
  struct PlanMemory {
    std::uint64_t home = 0;            // physical offset of the plan's first handle; the others follow at home
    std::vector<std::uint32_t> views;  // the number of each of the plan's views; 0: the home view, or not mapped yet
  };
  // Creates the plan's handles, but not the late ones (`is_late`, by handle; empty: none is), releases as much idle
  // memory, and maps the views that show no late handle. The plan's memory then stays until `forget_plan` is called,
  // and its bytes are kept for `OnlineAllocator::take_planned` (HandlePlacement::keep_plan_bytes). They are free for
  // `stream`. Returns nothing if the backend refuses. Pre: no plan is kept.
  std::optional<PlanMemory> exchange_for_plan(const DevicePlan& plan, const std::vector<bool>& is_late,
                                              StreamIndex stream);
  // Does the rest for the late handles. False: the backend refuses, and the plan was forgotten. Pre: some are late.
  bool complete_plan(const DevicePlan& plan, const std::vector<bool>& is_late, StreamIndex stream, PlanMemory* memory);
  // Releases the handles outside the plan that became idle since then, as `idle_bytes` counts them.
  void release_beside_plan();
  // From now on, the plan's memory is like all other memory. Does nothing without a plan.
  void forget_plan() noexcept;
  [[nodiscard]] bool keeps_plan() const noexcept { return plan_.bytes() > 0; }

  // Bytes that were released because nobody needed them (`release_idle`, `release_handles`), since the beginning.
  [[nodiscard]] std::uint64_t given_back_bytes() const noexcept { return given_back_; }
  // Time spent in mapping views, and in unmapping those that make room for others: a part of the backend's mapping
  // time.
  [[nodiscard]] std::uint64_t stitching_nanoseconds() const noexcept { return stitching_ns_; }

  // A caller that changes the placement must make mappings and handles agree with it.
  [[nodiscard]] HandlePlacement& placement() noexcept { return placement_; }
  [[nodiscard]] const HandlePlacement& placement() const noexcept { return placement_; }
  [[nodiscard]] Backend& backend() noexcept { return backend_; }
  [[nodiscard]] const Backend& backend() const noexcept { return backend_; }
  [[nodiscard]] OnlineCounts& counts() noexcept { return counts_; }
  [[nodiscard]] const OnlineCounts& counts() const noexcept { return counts_; }

 private:
  using Handles = HandlePlacement::Handles;

  static constexpr std::size_t kViewsTried = 4;        // views that one request examines to make room for another
  static constexpr std::size_t kHandlesPerBatch = 16;  // that are created for a plan at once

  bool grow(const Proposal& proposal, StreamIndex stream);
  void shrink(const Proposal& proposal);
  std::optional<Place> stitch(const Proposal& proposal);
  std::optional<std::uint32_t> make_view(const std::vector<Range>& pieces, std::uint64_t times_room, bool planned);
  std::optional<std::uint32_t> lengthen_view(const Proposal& proposal);

  bool shorten_view(std::uint32_t view, std::size_t pieces);
  void cut_idle_parts(std::uint32_t number);
  void remove_view(std::uint32_t view, bool is_unmapped);
  [[nodiscard]] FreeSpace shown_in_views() const;
  [[nodiscard]] FreeSpace shown_in_planned_views() const;

  [[nodiscard]] std::vector<std::uint64_t> idle_handles(const FreeSpace& shown);
  template <class IsWanted>
  bool exchange_handles(const DevicePlan& plan, std::uint64_t home, IsWanted is_wanted, StreamIndex stream);
  bool map_plan_views(const DevicePlan& plan, const std::vector<bool>& is_late, PlanMemory* memory);
  std::uint64_t release_until(std::uint64_t keep, bool of_plan);
  void release_idle_small(std::uint64_t grown);
  bool can_be_released(const Handles::value_type& handle, const FreeSpace& shown);
  std::uint64_t release(std::uint64_t at);
  const std::vector<Handle>& handles_of(Ranges pieces);

  OnlineCounts counts_;  // first, since nearly every request changes it (OnlineAllocator)
  Backend backend_;
  HandlePlacement placement_;
  std::uint64_t stitching_ns_ = 0;
  std::uint64_t given_back_ = 0;
  Range plan_;                   // physical offsets of the plan that is kept; empty: none is
  FreeSpace view_addresses_;     // addresses for views that no view has
  std::vector<Handle> handles_;  // what `handles_of` returned last
};

template <OnlineBackend Backend>
std::optional<Place> MappedMemory<Backend>::carry_out(const Proposal& proposal, StreamIndex stream) {
  if (!grow(proposal, stream)) return std::nullopt;
  if (proposal.pieces.empty()) return Place{0, proposal.offset};
  const std::optional<Place> place = stitch(proposal);
  if (!place) shrink(proposal);
  return place;
}

template <OnlineBackend Backend>
void MappedMemory<Backend>::undo(const Proposal& proposal, Place place) {
  if (!proposal.pieces.empty()) {
    if (proposal.view == 0) {
      unmap_view(place.view);
    } else {
      shorten_view(place.view, proposal.pieces.size());
    }
  }
  shrink(proposal);
}

template <OnlineBackend Backend>
std::optional<Place> MappedMemory<Backend>::carry_out(const HandlePlacement::Repair& repair) {
  struct Part {
    VirtualAddress at;
    std::vector<Handle> shown;
    std::vector<Handle> instead;
    bool is_mapped = true;
  };
  ViewCache::CachedView& view = placement_.views()[repair.view];
  std::vector<Part> parts;  // everything that may throw is done first
  for (const auto& part : repair.parts) {
    std::vector<Handle> shown = handles_of(part.shown);
    parts.push_back({behind(begin_of(view), part.at), std::move(shown), handles_of(part.instead)});
  }
  StitchedView repaired(placement_.pieces_after(repair));

  const std::uint64_t before = backend_.mapping_time().mapping;
  bool unmapped = true;
  for (Part& part : parts) {
    if (part.instead.empty()) continue;
    unmapped = backend_.unmap(part.at, part.shown) && unmapped;
    part.is_mapped = false;
  }
  bool mapped = unmapped;
  for (Part& part : parts) {
    if (!mapped || part.is_mapped) continue;
    part.is_mapped = mapped = backend_.map(part.at, part.instead);
    if (mapped) counts_.mapped += part.instead.size();
  }
  if (mapped) {
    view.stitched = std::move(repaired);
    ++counts_.repaired;
  } else {
    for (const Part& part : parts) {
      const std::vector<Handle>& handles = part.instead.empty() ? part.shown : part.instead;
      if (part.is_mapped) unmapped = backend_.unmap(part.at, handles) && unmapped;
    }
    remove_view(repair.view, unmapped);
  }
  stitching_ns_ += backend_.mapping_time().mapping - before;
  return mapped ? std::optional(Place{repair.view, repair.offset}) : std::nullopt;
}

template <OnlineBackend Backend>
std::size_t MappedMemory<Backend>::handle_count(Ranges pieces) const {
  std::size_t count = 0;
  for (const Range& piece : pieces) {
    auto handle = placement_.handles().find(piece.begin);
    for (; handle != placement_.handles().end() && handle->first < piece.end; ++handle) ++count;
  }
  return count;
}

// Creates the new handles of a proposal. Their bytes are free for `stream`.
template <OnlineBackend Backend>
bool MappedMemory<Backend>::grow(const Proposal& proposal, StreamIndex stream) {
  if (proposal.grow.empty()) return true;
  if (!placement_.is_for_small(proposal.grow_at)) release_idle_small(proposal.grown());
  handles_.clear();
  for (const std::uint64_t bytes : proposal.grow) handles_.push_back(Handle{bytes, 0});
  if (!backend_.create(proposal.grow_at, handles_)) return false;
  std::uint64_t at = proposal.grow_at;
  for (const Handle& handle : handles_) {
    placement_.add_handle(at, {handle.bytes, handle.id, false}, stream);
    at += handle.bytes;
  }
  counts_.handles += handles_.size();
  return true;
}

// Undoes `grow`. A handle that the backend does not take back stays and is free.
template <OnlineBackend Backend>
void MappedMemory<Backend>::shrink(const Proposal& proposal) {
  std::uint64_t at = proposal.grow_at;
  for (const std::uint64_t bytes : proposal.grow) {
    const HandlePlacement::Handle& handle = placement_.handles().at(at);
    if (backend_.destroy(at, Handle{handle.bytes, handle.id})) placement_.remove_handle(at);
    at += bytes;
  }
}

// Maps the pieces of a proposal as a new view, or at the end of an existing one.
template <OnlineBackend Backend>
std::optional<Place> MappedMemory<Backend>::stitch(const Proposal& proposal) {
  const std::uint64_t before = backend_.mapping_time().mapping;
  const std::optional<std::uint32_t> view =
      proposal.view == 0 ? make_view(proposal.pieces, placement_.policy().view_room, false) : lengthen_view(proposal);
  stitching_ns_ += backend_.mapping_time().mapping - before;
  return view ? std::optional(Place{*view, proposal.offset}) : std::nullopt;
}

// Maps a new view, with addresses for up to `times_room` times what it shows. Returns its number; nothing if there are
// no addresses, or the backend refuses.
template <OnlineBackend Backend>
std::optional<std::uint32_t> MappedMemory<Backend>::make_view(const std::vector<Range>& pieces,
                                                              std::uint64_t times_room, bool planned) {
  std::uint64_t bytes = 0;
  for (const Range& piece : pieces) bytes += piece.bytes();
  const std::uint64_t room = std::min(times_room * bytes, view_addresses_.largest());
  if (room < bytes) return std::nullopt;
  const std::uint64_t at = view_addresses_.best_fit(room)->begin;
  view_addresses_.subtract({at, at + room});
  handles_of(pieces);
  const std::uint32_t view = placement_.views().add(pieces, at, room, planned);
  if (!backend_.map(begin_of(placement_.views()[view]), handles_)) {
    remove_view(view, true);
    return std::nullopt;
  }
  ++counts_.views;
  counts_.mapped += handles_.size();
  return view;
}

// A view that cannot be lengthened is not tried again: the same refusal would meet every request.
template <OnlineBackend Backend>
std::optional<std::uint32_t> MappedMemory<Backend>::lengthen_view(const Proposal& proposal) {
  ViewCache::CachedView& view = placement_.views()[proposal.view];
  const VirtualAddress end = behind(begin_of(view), view.bytes());
  handles_of(proposal.pieces);
  placement_.views().lengthen(proposal.view, proposal.pieces);
  if (backend_.map(end, handles_)) {
    ++counts_.lengthened;
    counts_.mapped += handles_.size();
    return proposal.view;
  }
  placement_.views().shorten(proposal.view, proposal.pieces.size());
  view.room = view.bytes();
  return std::nullopt;
}

template <OnlineBackend Backend>
bool MappedMemory<Backend>::is_idle(std::uint32_t view) noexcept {
  const ViewCache::CachedView& asked = placement_.views()[view];
  return asked.bytes() > 0 && asked.live == 0 && backend_.is_complete_up_to(asked.freed_at);
}

template <OnlineBackend Backend>
bool MappedMemory<Backend>::unmap_view(std::uint32_t view) {
  const ViewCache::CachedView& dropped = placement_.views()[view];
  const Ranges pieces = dropped.stitched.pieces();
  bool unmapped = true;
  for (std::size_t first = 0; first < pieces.size();) {
    std::size_t next = first;
    while (next < pieces.size() && pieces[next].bytes() > 0) ++next;  // up to a hole
    const std::vector<Handle>& handles = handles_of(pieces.subspan(first, next - first));
    const VirtualAddress at = behind(begin_of(dropped), dropped.stitched.start(first));
    unmapped = (handles.empty() || backend_.unmap(at, handles)) && unmapped;
    first = next + 1;
  }
  remove_view(view, unmapped);
  return unmapped;
}

// Removes a view. Its addresses can be used again only if nothing is mapped there any more.
template <OnlineBackend Backend>
void MappedMemory<Backend>::remove_view(std::uint32_t view, bool is_unmapped) {
  const ViewCache::CachedView& removed = placement_.views()[view];
  const Range addresses{removed.at, removed.at + removed.room};
  const bool is_free = is_unmapped && !removed.stays_mapped;
  placement_.views().remove(view);
  if (is_free) view_addresses_.add(addresses);
}

// Unmaps the last `pieces` of a view. False: something of them is still mapped. Pre: the view has more pieces than
// that; these pieces are free, and the device has finished with them.
template <OnlineBackend Backend>
bool MappedMemory<Backend>::shorten_view(std::uint32_t view, std::size_t pieces) {
  ViewCache::CachedView& shortened = placement_.views()[view];
  handles_of(Ranges(shortened.stitched.pieces()).last(pieces));
  placement_.views().shorten(view, pieces);
  const bool unmapped = backend_.unmap(behind(begin_of(shortened), shortened.bytes()), handles_);
  if (!unmapped) shortened.room = shortened.bytes();
  return unmapped;
}

// Unmaps the handles of a view in which nothing lives, so that what lives in the view, which may be weights, does not
// keep them.
template <OnlineBackend Backend>
void MappedMemory<Backend>::cut_idle_parts(std::uint32_t number) {
  struct Part {
    Range offsets;  // in the view
    std::vector<Handle> handles;
  };
  ViewCache::CachedView& view = placement_.views()[number];
  std::vector<Part> parts;
  for (std::size_t i = 0; i < view.stitched.pieces().size(); ++i) {
    const Range piece = view.stitched.pieces()[i];
    auto handle = placement_.handles().find(piece.begin);
    for (; handle != placement_.handles().end() && handle->first < piece.end; ++handle) {
      const Range range{handle->first, handle->first + handle->second.bytes};
      if (!placement_.is_free(range) || !backend_.is_complete({&range, 1})) continue;
      const std::uint64_t at = view.stitched.start(i) + range.begin - piece.begin;
      if (parts.empty() || parts.back().offsets.end != at) parts.push_back({{at, at}, {}});
      parts.back().offsets.end += range.bytes();
      parts.back().handles.push_back(Handle{range.bytes(), handle->second.id});
    }
  }
  for (const Part& part : parts) {
    const VirtualAddress at = behind(begin_of(view), part.offsets.begin);
    placement_.views().cut(number, part.offsets);  // first, since it may throw
    if (!backend_.unmap(at, part.handles)) view.stays_mapped = true;
  }
  if (view.stays_mapped) view.room = view.bytes();
  if (!parts.empty() && view.bytes() == 0) remove_view(number, true);
}

template <OnlineBackend Backend>
void MappedMemory<Backend>::unmap_idle_views() {
  for (std::uint32_t view = 1; view <= placement_.views().numbers(); ++view) {
    if (placement_.views()[view].planned) continue;
    if (is_idle(view)) {
      unmap_view(view);
    } else {
      cut_idle_parts(view);
    }
  }
}

template <OnlineBackend Backend>
bool MappedMemory<Backend>::make_room_for_view(std::uint64_t bytes) {
  const OnlinePolicy& policy = placement_.policy();
  const auto has_room = [&] {
    return placement_.views().count() < policy.kept_views && view_addresses_.largest() >= policy.view_room * bytes;
  };
  for (std::size_t i = 0; i < kViewsTried && !has_room(); ++i) {
    const std::uint32_t oldest = placement_.views().least_recent();
    if (oldest == 0) return false;
    if (is_idle(oldest)) {
      const std::uint64_t before = backend_.mapping_time().mapping;
      unmap_view(oldest);
      stitching_ns_ += backend_.mapping_time().mapping - before;
    } else {
      placement_.views().refresh(oldest);  // it is examined again after the others
    }
  }
  return has_room();
}

// The physical offsets that views show.
template <OnlineBackend Backend>
FreeSpace MappedMemory<Backend>::shown_in_views() const {
  FreeSpace shown;
  for (std::uint32_t view = 1; view <= placement_.views().numbers(); ++view) {
    for (const Range& piece : placement_.views()[view].stitched.pieces()) shown.add(piece);
  }
  return shown;
}

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

// Returns the handles of the pieces. Valid until the next call.
template <OnlineBackend Backend>
auto MappedMemory<Backend>::handles_of(Ranges pieces) -> const std::vector<Handle>& {
  handles_.clear();
  for (const Range& piece : pieces) {
    auto handle = placement_.handles().find(piece.begin);
    for (; handle != placement_.handles().end() && handle->first < piece.end; ++handle) {
      handles_.push_back(Handle{handle->second.bytes, handle->second.id});
    }
  }
  return handles_;
}

}  // namespace stalloc::plan

#include "plan/online/mapped_memory_plan.h"
