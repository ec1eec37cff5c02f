// SPDX-License-Identifier: Apache-2.0
// Making room where no free range is long enough: new handles behind the last, or a view stitched of free handles.
#include "plan/online/handle_placement.h"

#include <algorithm>
#include <utility>

#include "plan/online/growth.h"
#include "plan/placement/stitching.h"
#include "plan/placement/units.h"

namespace stalloc::plan {
namespace {

// Offsets are scarce once less than (all / this) is left behind the last handle. For large requests the library has one
// and a half times as many offsets as the device has bytes, so by then memory has been given back, and handles that
// stayed divide the offsets before the last one. If nothing changed, later ones would divide the rest, too.
constexpr std::uint64_t kScarcePart = 3;

}  // namespace

std::optional<HandlePlacement::Proposal> HandlePlacement::propose(std::uint64_t bytes, StreamIndex stream,
                                                                  StreamScope scope, bool may_grow,
                                                                  bool may_stitch) const {
  const Spaces& spaces = spaces_in(stream, scope);
  std::optional<Proposal> extended;
  if (may_grow) extended = extend(bytes, spaces);
  if (!may_stitch || !is_stitchable(bytes)) return extended;
  std::optional<Proposal> stitched = stitch(bytes, spaces, may_grow);
  if (!stitched || !extended) return stitched ? stitched : extended;
  return extended->grown() <= stitched->grown() ? extended : stitched;
}

// Proposes new handles behind the last one; free bytes right before them become part of the request. Where the home
// view has little or no room there, the new handles go to the smallest stretch without handles that is long enough.
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
  const Range& all = small ? options_.small : options_.large;
  const bool is_scarce = missing == bytes && tail.bytes() < all.bytes() / kScarcePart;
  const auto stretch = is_scarce ? unmapped.best_fit(proposal.grown()) : std::nullopt;
  if (stretch) proposal.offset = proposal.grow_at = stretch->begin;
  if (!stretch && proposal.grown() > tail.bytes()) {  // no room behind the last handle
    const auto room = unmapped.best_fit(round_up(bytes, options_.page));
    if (!room) return std::nullopt;
    proposal.offset = proposal.grow_at = room->begin;
    proposal.grow = new_handles(bytes, bytes, 1);
  }
  return proposal;
}

// Proposes a view of free handles, with new ones for what is missing. Nothing if new ones are needed and not allowed,
// or the home view has no place for them.
std::optional<HandlePlacement::Proposal> HandlePlacement::stitch(std::uint64_t bytes, const Spaces& spaces,
                                                                 bool may_grow) const {
  Stitching stitching = Stitcher({&spaces.large, &planned_of(spaces)}, handle_of(), page()).stitch(bytes, true);
  Proposal proposal;
  proposal.pieces = std::move(stitching.pieces);
  proposal.offset = stitching.offset;
  if (stitching.missing == 0) return proposal;
  if (!may_grow) return std::nullopt;
  proposal.grow = new_handles(stitching.missing, bytes, overdraft_.coarseness);
  const std::uint64_t grown = proposal.grown();
  const auto room = unmapped_.large.best_fit(grown);
  if (!room) return std::nullopt;
  proposal.grow_at = room->begin;
  proposal.pieces.push_back({room->begin, room->begin + grown});
  if (stitching.end.bytes() > 0) proposal.pieces.push_back(stitching.end);
  return proposal;
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
                           .bound = overdraft_.bound,
                           .stitching_overdrawn = overdraft_.held_per_slack > 0},
                          options_.page);
}

}  // namespace stalloc::plan
