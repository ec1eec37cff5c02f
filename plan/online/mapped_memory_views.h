// SPDX-License-Identifier: Apache-2.0
// MappedMemory: mapping, unmapping and cutting stitched views. Included at the end of mapped_memory.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "plan/online/mapped_memory.h"

namespace stalloc::plan {

// Maps the pieces of a proposal as a view.
template <OnlineBackend Backend>
std::optional<Place> MappedMemory<Backend>::stitch(const Proposal& proposal) {
  const std::uint64_t before = backend_.mapping_time().mapping;
  const std::optional<std::uint32_t> view = make_view(proposal.pieces, false);
  stitching_ns_ += backend_.mapping_time().mapping - before;
  return view ? std::optional(Place{*view, proposal.offset}) : std::nullopt;
}

// Maps a new view. Returns its number; nothing if there are no addresses, or the backend refuses.
template <OnlineBackend Backend>
std::optional<std::uint32_t> MappedMemory<Backend>::make_view(const std::vector<Range>& pieces, bool of_step_plan) {
  std::uint64_t bytes = 0;
  for (const Range& piece : pieces) bytes += piece.bytes();
  const auto addresses = view_addresses_.best_fit(bytes);
  if (!addresses) return std::nullopt;
  const std::uint64_t at = addresses->begin;
  view_addresses_.subtract({at, at + bytes});
  handles_of(pieces);
  const std::uint32_t view = placement_.views().add(pieces, at, of_step_plan);
  if (!backend_.map(begin_of(placement_.views()[view]), handles_)) {
    remove_view(view);
    return std::nullopt;
  }
  ++counts_.views;
  counts_.mapped += handles_.size();
  return view;
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
  remove_view(view);
  return unmapped;
}

// Removes a view. Its addresses can be used again only if nothing is mapped there any more.
template <OnlineBackend Backend>
void MappedMemory<Backend>::remove_view(std::uint32_t view) {
  const Range addresses = placement_.views()[view].addresses;
  placement_.views().remove(view);
  if (backend_.is_vacant({VirtualAddress::Space::Views, addresses.begin}, addresses.bytes())) {
    view_addresses_.add(addresses);
  }
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
    backend_.unmap(at, part.handles);
  }
  if (!parts.empty() && view.bytes() == 0) remove_view(number);
}

template <OnlineBackend Backend>
void MappedMemory<Backend>::unmap_idle_views() {
  for (std::uint32_t view = 1; view <= placement_.views().numbers(); ++view) {
    if (placement_.views()[view].of_step_plan) continue;
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
    return placement_.views().count() < policy.kept_views && view_addresses_.largest() >= bytes;
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

// Calls `act` for each element whose handle the view shows, perhaps several times. Pre: the elements' ranges are
// handles, in ascending order.
template <OnlineBackend Backend>
template <class Elements, class Act>
void MappedMemory<Backend>::for_each_shown(std::uint32_t view, Elements& elements, Act act) const {
  for (const Range& piece : placement_.views()[view].stitched.pieces()) {
    auto shown = std::ranges::lower_bound(elements, piece.begin, {}, [](const auto& it) { return it.range.begin; });
    for (; shown != elements.end() && shown->range.begin < piece.end; ++shown) act(*shown);
  }
}

}  // namespace stalloc::plan
