// Making room where no free range is long enough: new handles behind the last, or a view stitched of free handles.
#include "plan/placement/handle_placement.h"

#include <algorithm>

#include "plan/placement/growth.h"
#include "plan/placement/stitching.h"
#include "plan/placement/units.h"

namespace stalloc::plan {

std::optional<HandlePlacement::Proposal> HandlePlacement::propose(std::uint64_t bytes, StreamIndex stream, Reach reach,
                                                                  bool may_grow, bool may_stitch) const {
  const Spaces& spaces = reachable(stream, reach);
  std::optional<Proposal> extended;
  if (may_grow) extended = extend(bytes, spaces);
  if (!may_stitch || !is_stitchable(bytes)) return extended;
  std::optional<Proposal> stitched = stitch(bytes, spaces, may_grow);
  if (!stitched || !extended) return stitched ? stitched : extended;
  const auto sum = [](const Proposal& proposal) {
    std::uint64_t total = 0;
    for (const std::uint64_t handle : proposal.grow) total += handle;
    return total;
  };
  return sum(*extended) <= sum(*stitched) ? extended : stitched;
}

// New handles behind the last one, where the free bytes before them, if any, are part of the request.
std::optional<HandlePlacement::Proposal> HandlePlacement::extend(std::uint64_t bytes, const Spaces& spaces) const {
  const bool small = bytes < options_.small_bytes;
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
  if (round_up(missing, options_.page) > tail.bytes()) return std::nullopt;
  proposal.grow = new_handles(missing, bytes);
  proposal.grow_at = tail.begin;
  return proposal;
}

std::optional<HandlePlacement::Proposal> HandlePlacement::stitch(std::uint64_t bytes, const Spaces& spaces,
                                                                 bool may_grow) const {
  const auto handle_of = [this](std::uint64_t at) {
    const auto handle = holding(at);
    return Range{handle->first, handle->first + handle->second.bytes};
  };
  Stitching stitching = Stitcher({&spaces.large, &spaces.small, &spaces.planned}, handle_of).stitch(bytes, true);
  Proposal proposal;
  proposal.pieces = std::move(stitching.pieces);
  proposal.offset = stitching.offset;
  if (stitching.missing == 0) return proposal;
  if (!may_grow) return std::nullopt;
  const std::uint64_t grown = round_up(stitching.missing, options_.page);
  const auto room = unmapped_.large.best_fit(grown);
  if (!room) return std::nullopt;
  proposal.grow = new_handles(stitching.missing, bytes);
  proposal.grow_at = room->begin;
  proposal.pieces.push_back({room->begin, room->begin + grown});
  return proposal;
}

std::vector<std::uint64_t> HandlePlacement::new_handles(std::uint64_t missing, std::uint64_t request) const {
  return new_handle_sizes(missing, request, physical_bytes_, options_.page, options_.largest_handle);
}

}  // namespace stalloc::plan
