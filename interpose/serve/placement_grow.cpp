// Making room where no free range is long enough: new handles behind the last, or a view stitched of free handles.
#include "interpose/serve/placement.h"

#include <algorithm>

#include "interpose/serve/growth.h"
#include "plan/plan.h"

namespace stalloc::serve {

// A free range as a piece of a stitched view sees it.
struct Placement::Piece {
  std::uint64_t first = 0;  // the first handle that begins in the range
  std::uint64_t whole = 0;  // bytes of whole handles from there
  std::uint64_t all = 0;    // the same with the free part of the last handle
};

std::optional<Placement::Proposal> Placement::propose(std::uint64_t bytes, StreamOrdinal stream, Reach reach,
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
std::optional<Placement::Proposal> Placement::extend(std::uint64_t bytes, const Spaces& spaces) const {
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
  if (plan::round_up(missing, options_.page) > tail.bytes()) return std::nullopt;
  proposal.grow = new_handles(missing, bytes);
  proposal.grow_at = tail.begin;
  return proposal;
}

// Longest pieces first, so that they are few; the last is the smallest that is enough, so that the long ones last.
std::optional<Placement::Proposal> Placement::stitch(std::uint64_t bytes, const Spaces& spaces, bool may_grow) const {
  Proposal proposal;
  std::uint64_t need = bytes;
  const Range head = best_head(spaces);
  if (head.bytes() > 0) {
    const std::uint64_t handle = holding(head.begin)->first;
    proposal.offset = head.begin - handle;
    proposal.pieces.push_back({handle, head.end});
    need -= std::min(need, head.bytes());
  }
  std::vector<Piece> pieces;
  collect_pieces(spaces.large, head, &pieces);
  collect_pieces(spaces.small, head, &pieces);
  collect_pieces(spaces.planned, head, &pieces);
  std::sort(pieces.begin(), pieces.end(),
            [](const Piece& a, const Piece& b) { return a.whole != b.whole ? a.whole < b.whole : a.first > b.first; });
  while (need > 0) {
    const Piece* last = nullptr;
    for (const Piece& piece : pieces) {
      if (piece.all >= need && (last == nullptr || piece.all < last->all)) last = &piece;
    }
    if (last != nullptr) {
      const auto handle = holding(last->first + need - 1);
      proposal.pieces.push_back({last->first, handle->first + handle->second.bytes});
      return proposal;
    }
    if (pieces.empty() || pieces.back().whole == 0) break;
    proposal.pieces.push_back({pieces.back().first, pieces.back().first + pieces.back().whole});
    need -= pieces.back().whole;
    pieces.pop_back();
  }
  if (need == 0) return proposal;
  if (!may_grow) return std::nullopt;
  const auto at = room_for(plan::round_up(need, options_.page), false);
  if (!at) return std::nullopt;
  proposal.grow = new_handles(need, bytes);
  proposal.grow_at = *at;
  proposal.pieces.push_back({*at, *at + plan::round_up(need, options_.page)});
  return proposal;
}

// The free ranges that hold a handle's beginning and bytes behind it, but for `head`. No piece ends in the handle that
// `head` begins in: a view maps no handle twice.
void Placement::collect_pieces(const FreeSpace& space, Range head, std::vector<Piece>* out) const {
  for (const auto& [begin, end] : space.ranges()) {
    if (head.bytes() > 0 && begin == head.begin) continue;
    const auto first = handles_.lower_bound(begin);
    if (first == handles_.end() || first->first >= end) continue;
    const auto last = holding(end - 1);
    const bool last_is_whole = last->first + last->second.bytes == end;
    const std::uint64_t whole = (last_is_whole ? end : last->first) - first->first;
    const bool ends_in_head = head.bytes() > 0 && !last_is_whole && last == holding(head.begin);
    const std::uint64_t all = ends_in_head ? whole : end - first->first;
    if (all > 0) out->push_back({first->first, whole, all});
  }
}

// The free range that ends with a handle and has most bytes in the handle it begins inside; empty when none does.
Range Placement::best_head(const Spaces& spaces) const {
  Range best;
  std::uint64_t best_part = 0;
  for (const FreeSpace* space : {&spaces.large, &spaces.small, &spaces.planned}) {
    for (const auto& [begin, end] : space->ranges()) {
      const auto first = holding(begin);
      if (first->first == begin) continue;
      const std::uint64_t first_end = first->first + first->second.bytes;
      if (first_end > end || first_end - begin <= best_part) continue;
      const auto last = holding(end - 1);
      if (last->first + last->second.bytes != end) continue;
      best = {begin, end};
      best_part = first_end - begin;
    }
  }
  return best;
}

std::vector<std::uint64_t> Placement::new_handles(std::uint64_t missing, std::uint64_t request) const {
  return new_handle_sizes(missing, request, physical_bytes_, options_.page, options_.largest_handle);
}

std::optional<std::uint64_t> Placement::room_for(std::uint64_t bytes, bool small) const {
  const auto room = (small ? unmapped_.small : unmapped_.large).best_fit(bytes);
  if (!room) return std::nullopt;
  return room->begin;
}

}  // namespace stalloc::serve
