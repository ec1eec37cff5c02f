// SPDX-License-Identifier: Apache-2.0
// The online allocator's physical memory and its mappings: creates, maps, unmaps and releases what the placement
// proposes, and keeps the placement in agreement with what the backend has mapped.
//
// Physical memory consists of handles. Each handle is mapped at its place in the home view, and may also be shown by
// stitched views, which have addresses in a range of their own. Nothing is unmapped or released while pending work may
// use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "plan/online/handle_placement.h"
#include "plan/online/online_backend.h"
#include "plan/plan.h"

namespace stalloc::plan {

// What an online allocator has done so far.
struct OnlineCounts {
  std::uint64_t view_hits = 0;  // requests served in a view made before
  std::uint64_t views = 0;      // stitched views made
  std::uint64_t repaired = 0;   // times that handles of an idle view were exchanged for others
  std::uint64_t mapped = 0;     // handles mapped for any of these
  std::uint64_t handles = 0;    // handles created
  std::uint64_t grows = 0;      // requests for which new memory was created
  std::uint64_t borrows = 0;    // requests served from bytes that another stream freed
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
    return {VirtualAddress::Space::Views, view.addresses.begin};
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
  // held; handles of a recorded plan's arena only if `of_arena`. Returns the bytes released.
  std::uint64_t release_idle(std::uint64_t keep, bool of_arena);
  // The same for just the handles that these ranges lie in, those of an arena excepted. First unmaps `view` if it is
  // idle (0: there is none), which showed them.
  std::uint64_t release_handles(Ranges freed, std::uint32_t view);
  // Whether one of the handles that `release_idle` considers is wholly free. After a call of that with `keep` 0,
  // pending work may still use it.
  [[nodiscard]] bool has_free_handle(bool of_arena) const;
  // Releases memory for a request of `bytes`, no more than it needs: idle handles that no view maps, then idle views
  // and their handles. Returns the bytes released.
  std::uint64_t reclaim(std::uint64_t bytes, bool of_arena);
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
  // The physical offsets of a handle.
  [[nodiscard]] static Range range_of(const HandlePlacement::Handles::value_type& handle) noexcept {
    return {handle.first, handle.first + handle.second.bytes};
  }

  static constexpr std::size_t kViewsTried = 4;        // views that one request examines to make room for another
  static constexpr std::size_t kHandlesPerBatch = 16;  // that are created for a plan at once

  bool grow(const Proposal& proposal, StreamIndex stream);
  void add_handles(std::uint64_t at, std::span<const Handle> handles, StreamIndex stream);
  void shrink(const Proposal& proposal);
  std::optional<Place> stitch(const Proposal& proposal);
  std::optional<std::uint32_t> make_view(const std::vector<Range>& pieces, bool of_step_plan);

  void cut_idle_parts(std::uint32_t number);
  void remove_view(std::uint32_t view);
  template <class Elements, class Act>
  void for_each_shown(std::uint32_t view, Elements& elements, Act act) const;

  struct Candidate {
    Range range;  // of a handle
    bool is_shown = false;
  };
  enum class Views : std::uint8_t { All, OfStepPlan };
  std::vector<std::uint64_t> releasable(std::vector<Candidate> handles, Views views);
  std::vector<std::uint64_t> idle_handles(Views views);
  template <class IsWanted>
  bool exchange_handles(const DevicePlan& plan, std::uint64_t home, IsWanted is_wanted, StreamIndex stream);
  bool map_plan_views(const DevicePlan& plan, const std::vector<bool>& is_late, PlanMemory* memory);
  std::uint64_t release_until(std::uint64_t keep, bool of_arena);
  void release_idle_small(std::uint64_t grown);
  [[nodiscard]] bool is_kept(Range handle) const noexcept {
    return handle.begin >= plan_.begin && handle.begin < plan_.end;
  }
  bool is_idle_handle(Range range);
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
  if (place.view != 0) unmap_view(place.view);
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
    placement_.views().change(repair.view, std::move(repaired));
    ++counts_.repaired;
  } else {
    for (const Part& part : parts) {
      const std::vector<Handle>& handles = part.instead.empty() ? part.shown : part.instead;
      if (part.is_mapped) backend_.unmap(part.at, handles);
    }
    remove_view(repair.view);
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
  add_handles(proposal.grow_at, handles_, stream);
  return true;
}

// Adds handles that were created one after another from `at` on. If host memory is missing, gives back those that the
// placement does not know; the bytes of one that it does know are then never used.
template <OnlineBackend Backend>
void MappedMemory<Backend>::add_handles(std::uint64_t at, std::span<const Handle> handles, StreamIndex stream) {
  for (std::size_t i = 0; i < handles.size(); at += handles[i++].bytes) {
    try {
      placement_.add_handle(at, {handles[i].bytes, handles[i].id, false}, stream);
    } catch (...) {
      for (; i < handles.size(); at += handles[i++].bytes) {
        if (!placement_.handles().contains(at)) backend_.destroy(at, handles[i]);
      }
      throw;
    }
  }
  counts_.handles += handles.size();
}

// Undoes `grow`. A handle that the backend does not take back stays and is free.
template <OnlineBackend Backend>
void MappedMemory<Backend>::shrink(const Proposal& proposal) {
  std::uint64_t at = proposal.grow_at;
  for (const std::uint64_t bytes : proposal.grow) {
    const HandlePlacement::Handle& handle = placement_.handles().at(at);
    placement_.prepare_removal(at);
    if (backend_.destroy(at, Handle{handle.bytes, handle.id})) placement_.remove_handle(at);
    at += bytes;
  }
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

// The other member functions:
#include "plan/online/mapped_memory_plan.h"
#include "plan/online/mapped_memory_release.h"
#include "plan/online/mapped_memory_views.h"
