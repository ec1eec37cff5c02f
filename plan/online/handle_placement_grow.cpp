// SPDX-License-Identifier: Apache-2.0
// Making room where no free range is long enough: new handles behind the last, or a view stitched of free handles.
#include "plan/online/handle_placement.h"

#include <algorithm>

#include "plan/online/growth.h"
#include "plan/placement/stitching.h"
#include "plan/placement/units.h"

namespace stalloc::plan {
std::optional<HandlePlacement::Proposal> HandlePlacement::propose(std::uint64_t bytes, StreamIndex stream,
                                                                  StreamScope scope, bool may_grow,
                                                                  bool may_stitch) const {
  const Spaces& spaces = spaces_in(stream, scope);
  std::optional<Proposal> extended;
  if (may_grow) extended = extend(bytes, spaces);
  if (!may_stitch || !is_stitchable(bytes)) return extended;
  std::optional<Proposal> stitched = stitch(bytes, spaces, may_grow);
  // If stitching is overdrawn, there are many views, and examining all of them would take long.
  std::optional<Proposal> lengthened;
  if (overdraft_.held_per_slack == 0) lengthened = lengthen(bytes, spaces, may_grow);
  if (lengthened && (!stitched || lengthened->grown() <= stitched->grown())) stitched.swap(lengthened);
  if (!stitched || !extended) return stitched ? stitched : extended;
  return extended->grown() <= stitched->grown() ? extended : stitched;
}

// Proposes new handles behind the last one; free bytes right before them become part of the request. Where the home
// view has no room there, the new handles go to the smallest stretch without handles that is long enough.
std::optional<HandlePlacement::Proposal> HandlePlacement::extend(std::uint64_t bytes, const Spaces& spaces) const {
  const bool small = is_small(bytes);
  const FreeSpace& unmapped = small ? unmapped_.small : unmapped_.large;
  if (unmapped.ranges().empty()) return std::nullopt;
  const Range tail{unmapped.ranges().rbegin()->first, unmapped.ranges().rbegin()->second};
  Proposal proposal;
  proposal.offset = tail.begin;
  std::uint64_t missing = bytes;
  const FreeSpace& space = small ? spaces.small : spaces.large;
  if (!space.ranges().empty() && space.ranges().rbegin()->second == tail.begin) {
    proposal.offset = space.ranges().rbegin()->first;
    missing -= std::min(missing, tail.begin - proposal.offset);
  }
  proposal.grow_at = tail.begin;
  proposal.grow = new_handles(missing, bytes, small ? 1 : overdraft_.coarseness);
  if (proposal.grown() > tail.bytes()) {  // no room behind the last handle
    const auto room = unmapped.best_fit(round_up(bytes, options_.page));
    if (!room) return std::nullopt;
    proposal.offset = proposal.grow_at = room->begin;
    proposal.grow = new_handles(bytes, bytes, 1);
  }
  return proposal;
}

std::optional<HandlePlacement::Proposal> HandlePlacement::stitch(std::uint64_t bytes, const Spaces& spaces,
                                                                 bool may_grow) const {
  Stitching stitching = Stitcher({&spaces.large, &planned_of(spaces)}, handle_of()).stitch(bytes, true);
  Proposal proposal;
  proposal.pieces = std::move(stitching.pieces);
  proposal.offset = stitching.offset;
  if (!add_missing(stitching.missing, bytes, may_grow, &proposal)) return std::nullopt;
  return proposal;
}

// Proposes to lengthen the view that has most free bytes at its end, since those are mapped already.
std::optional<HandlePlacement::Proposal> HandlePlacement::lengthen(std::uint64_t bytes, const Spaces& spaces,
                                                                   bool may_grow) const {
  Proposal proposal;
  std::uint64_t most = round_up(bytes / options_.policy.request_per_free_end, kUnitBytes);
  for (std::uint32_t number = 1; number <= views_.numbers(); ++number) {
    const ViewCache::CachedView& candidate = views_[number];
    if (candidate.bytes() == 0) continue;
    // If a page or more is free at its end, its last page is free, and a bit says whether it is.
    const std::uint64_t end = candidate.stitched.pieces().back().end;
    if (most >= options_.page && !free_pages_.holds({end - options_.page, end})) continue;
    const std::uint64_t free = candidate.stitched.free_at_end(space_of(spaces)) / kUnitBytes * kUnitBytes;
    if (free < most || free >= bytes || candidate.bytes() + bytes - free > candidate.room) continue;
    most = free;
    proposal.view = number;
  }
  if (proposal.view == 0) return std::nullopt;
  const ViewCache::CachedView& found = views_[proposal.view];
  FreeSpace in_view;
  for (const Range& piece : found.stitched.pieces()) in_view.add(piece);
  const Stitcher stitcher({&spaces.large, &planned_of(spaces)}, handle_of());
  Stitching stitching = stitcher.lengthen(bytes - most, in_view);
  proposal.pieces = std::move(stitching.pieces);
  proposal.offset = found.bytes() - most;
  if (!add_missing(stitching.missing, bytes, may_grow, &proposal)) return std::nullopt;
  return found.bytes() + proposal.shown() <= found.room ? std::optional(proposal) : std::nullopt;
}

// Adds new handles for what is missing behind the pieces of a proposal. False when that is not allowed, or the home
// view has no place for them.
bool HandlePlacement::add_missing(std::uint64_t missing, std::uint64_t request, bool may_grow,
                                  Proposal* proposal) const {
  if (missing == 0) return true;
  if (!may_grow) return false;
  proposal->grow = new_handles(missing, request, overdraft_.coarseness);
  const std::uint64_t bytes = proposal->grown();
  const auto room = unmapped_.large.best_fit(bytes);
  if (!room) return false;
  proposal->grow_at = room->begin;
  proposal->pieces.push_back({room->begin, room->begin + bytes});
  return true;
}

std::vector<std::uint64_t> HandlePlacement::new_handles(std::uint64_t missing, std::uint64_t request,
                                                        std::uint64_t coarseness) const {
  return new_handle_sizes(options_.policy,
                          {.missing = missing,
                           .request = request,
                           .held = physical_bytes_,
                           .most_held = peak_physical_bytes_,
                           .room = room_,
                           .coarseness = coarseness,
                           .bounds = overdraft_.bounds,
                           .stitching_overdrawn = overdraft_.held_per_slack > 0},
                          options_.page);
}

}  // namespace stalloc::plan
