#include "plan/online/handle_placement.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "plan/online/growth.h"
#include "plan/placement/stitching.h"
#include "plan/placement/units.h"

namespace stalloc::plan {
namespace {

constexpr std::size_t kMostCompared = 16;  // ranges

std::uint64_t grown(const HandlePlacement::Proposal& proposal) {
  return std::accumulate(proposal.grow.begin(), proposal.grow.end(), std::uint64_t{0});
}

}  // namespace

// --- Handles, and free bytes by stream ---

HandlePlacement::HandlePlacement(const Options& options)
    : options_(options), by_page_(options.small.end / options.page) {
  unmapped_.large.add(options.large);
  unmapped_.small.add(options.small);
}

const HandlePlacement::Spaces& HandlePlacement::reachable(StreamIndex stream, Reach reach) const {
  static const Spaces kNothing;
  if (reach == Reach::None) return kNothing;
  if (reach == Reach::All || (!several_ && stream == first_)) return all_;
  return stream < own_.size() && own_[stream] ? *own_[stream] : kNothing;
}

// The stream gets bytes of its own: from the second stream on, each has its own free bytes.
void HandlePlacement::know(StreamIndex stream) {
  if (several_) {
    own(stream);
    return;
  }
  if (!any_) first_ = stream;
  any_ = true;
  if (stream == first_) return;
  own(first_) = all_;
  own(stream);
  several_ = true;
}

HandlePlacement::Spaces& HandlePlacement::own(StreamIndex stream) {
  if (own_.size() <= stream) own_.resize(std::size_t{stream} + 1);
  if (!own_[stream]) own_[stream] = std::make_unique<Spaces>();
  return *own_[stream];
}

void HandlePlacement::translate(Place place, std::uint64_t bytes, std::vector<Range>& out) const {
  if (place.view == 0) {
    append(out, {place.offset, place.offset + bytes});
  } else {
    views_[place.view].stitched.translate(place.offset, bytes, out);
  }
}

void HandlePlacement::take(std::span<const Range> ranges, StreamIndex stream, Reach reach) {
  for (const Range& range : ranges) {
    part(all_, range.begin).subtract({range.begin, range.end});
    if (!several_) continue;
    if (reach != Reach::All) {
      part(own(stream), range.begin).subtract({range.begin, range.end});
      continue;
    }
    for (const auto& spaces : own_) {
      if (spaces) part(*spaces, range.begin).subtract({range.begin, range.end});
    }
  }
}

void HandlePlacement::give(std::span<const Range> ranges, StreamIndex stream) {
  add_free(ranges, stream);
  if (large_was_freed_) return;
  std::uint64_t bytes = 0;
  for (const Range& range : ranges) bytes += range.bytes();
  large_was_freed_ = is_large_free(options_.policy, bytes, options_.page);
}

void HandlePlacement::add_free(std::span<const Range> ranges, StreamIndex stream) {
  know(stream);
  for (const Range& range : ranges) {
    part(all_, range.begin).add({range.begin, range.end});
    if (several_) part(own(stream), range.begin).add({range.begin, range.end});
  }
}

void HandlePlacement::add_handle(std::uint64_t at, const Handle& handle, StreamIndex stream) {
  adopt_handle(at, handle);
  const Range range{at, at + handle.bytes};
  add_free({&range, 1}, stream);
}

void HandlePlacement::adopt_handle(std::uint64_t at, const Handle& handle) {
  const auto added = handles_.emplace(at, handle).first;
  for (std::uint64_t begin = at; begin < at + handle.bytes; begin += options_.page) {
    by_page_[begin / options_.page] = added;
  }
  physical_bytes_ += handle.bytes;
  part(unmapped_, at).subtract({at, at + handle.bytes});
}

void HandlePlacement::remove_handle(std::uint64_t at) {
  const auto found = handles_.find(at);
  const Range range{at, at + found->second.bytes};
  take({&range, 1}, 0, Reach::All);
  if (!found->second.planned) part(unmapped_, at).add({range.begin, range.end});
  physical_bytes_ -= found->second.bytes;
  handles_.erase(found);
}

void HandlePlacement::lend_line(Range range) {
  unmapped_.large.subtract(range);
  lent_bytes_ += range.bytes();
}

bool HandlePlacement::is_free(Range range) const { return part(all_, range.begin).contains(range); }

std::uint64_t HandlePlacement::free_bytes(Range range) const {
  std::vector<Range> free;
  part(all_, range.begin).intersect(range, free);
  std::uint64_t bytes = 0;
  for (const Range& piece : free) bytes += piece.bytes();
  return bytes;
}

std::uint64_t HandlePlacement::largest_free() const {
  return std::max({all_.large.largest(), all_.small.largest(), all_.planned.largest()});
}

// --- Finding a place in memory that is there: contiguous on the line, or in a stitched view made before ---

std::uint64_t HandlePlacement::find_on_line(std::uint64_t bytes, StreamIndex stream, Reach reach) const {
  const Spaces& spaces = reachable(stream, reach);
  const bool small = bytes < options_.policy.small_bytes;
  std::uint64_t at = gentlest_fit(small ? spaces.small : spaces.large, bytes);
  if (at == kNowhere) at = gentlest_fit(small ? spaces.large : spaces.small, bytes);
  if (at == kNowhere) at = gentlest_fit(spaces.planned, bytes);
  return at;
}

// Of the best-fitting ranges and their two ends, the place that strands fewest bytes: free ones beside the request in
// handles that it takes a part of. A handle can be mapped only whole, so no stitched view can use them. Those that were
// stranded before count half.
// Small requests lie in handles of one page: their end does not matter.
std::uint64_t HandlePlacement::gentlest_fit(const FreeSpace& space, std::uint64_t bytes) const {
  const auto fit = space.best_fit(bytes);
  if (!fit) return kNowhere;
  if (fit->bytes() == bytes || bytes < options_.policy.small_bytes) return fit->begin;
  std::array<Range, kMostCompared> ranges;
  const OnlinePolicy& policy = options_.policy;
  const std::size_t most =
      bytes / options_.page < policy.compared_pages ? 1 : std::min<std::size_t>(policy.compared_fits, kMostCompared);
  const std::size_t count = space.fits(bytes, std::span(ranges).first(most));
  std::uint64_t best = fit->begin;
  std::uint64_t fewest = ~std::uint64_t{0};
  for (std::size_t i = 0; i < count && fewest > 0; ++i) {
    for (const std::uint64_t begin : {ranges[i].begin, ranges[i].end - bytes}) {
      const std::uint64_t stranded = stranded_by(ranges[i], {begin, begin + bytes});
      if (stranded >= fewest) continue;
      best = begin;
      fewest = stranded;
    }
  }
  return best;
}

// In half bytes. Pre: `taken` is one end of `free`: free bytes are left on its other side only.
std::uint64_t HandlePlacement::stranded_by(Range free, Range taken) const {
  const bool above = taken.begin == free.begin;
  const auto handle = holding(above ? taken.end - 1 : taken.begin);
  const Range whole{handle->first, handle->first + handle->second.bytes};
  const std::uint64_t left = above ? std::min(whole.end, free.end) - std::min(taken.end, whole.end)
                                   : taken.begin - std::max(whole.begin, free.begin);
  const bool was_whole = whole.begin >= free.begin && whole.end <= free.end;
  return was_whole ? 2 * left : left;
}

std::size_t HandlePlacement::candidates(std::uint64_t bytes, std::span<Range> out) const {
  const bool small = bytes < options_.policy.small_bytes;
  std::size_t count = 0;
  for (const FreeSpace* space : {small ? &all_.small : &all_.large, small ? &all_.large : &all_.small, &all_.planned}) {
    count += space->fits(bytes, out.subspan(count));
  }
  return count;
}

std::optional<Place> HandlePlacement::find_in_views(std::uint64_t bytes, StreamIndex stream, Reach reach) const {
  const Spaces& spaces = reachable(stream, reach);
  Place best;
  Range shortest;
  std::size_t looked_at = 0;
  const ViewCache::ByBytes& by_bytes = views_.by_bytes();
  for (auto at = by_bytes.lower_bound(bytes); at != by_bytes.end() && looked_at < options_.policy.searched_views;
       ++at, ++looked_at) {
    const Range run = views_[at->second].stitched.shortest_free(bytes, kUnitBytes, space_of(spaces));
    if (run.bytes() == 0 || (best.view != 0 && run.bytes() >= shortest.bytes())) continue;
    best = {at->second, run.begin};
    shortest = run;
    if (shortest.bytes() == bytes) break;
  }
  return best.view == 0 ? std::nullopt : std::optional(best);
}

// --- Making room where no free range is long enough: new handles, or a view stitched of free ones ---

std::optional<HandlePlacement::Proposal> HandlePlacement::propose(std::uint64_t bytes, StreamIndex stream, Reach reach,
                                                                  bool may_grow, bool may_stitch) const {
  const Spaces& spaces = reachable(stream, reach);
  std::optional<Proposal> extended;
  if (may_grow) extended = extend(bytes, spaces);
  if (!may_stitch || !is_stitchable(bytes)) return extended;
  std::optional<Proposal> stitched = stitch(bytes, spaces, may_grow);
  std::optional<Proposal> lengthened = lengthen(bytes, spaces, may_grow);
  if (lengthened && (!stitched || grown(*lengthened) <= grown(*stitched))) stitched.swap(lengthened);
  if (!stitched || !extended) return stitched ? stitched : extended;
  return grown(*extended) <= grown(*stitched) ? extended : stitched;
}

// New handles behind the last one, where the free bytes before them, if any, are part of the request; where the line
// has no room for that, the smallest stretch without handles that is long enough.
std::optional<HandlePlacement::Proposal> HandlePlacement::extend(std::uint64_t bytes, const Spaces& spaces) const {
  const bool small = bytes < options_.policy.small_bytes;
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
  if (round_up(missing, options_.page) > tail.bytes()) {  // then anywhere
    const auto room = unmapped.best_fit(round_up(bytes, options_.page));
    if (!room) return std::nullopt;
    missing = bytes;
    proposal.offset = proposal.grow_at = room->begin;
  }
  proposal.grow = new_handles(missing, bytes, 0);
  return proposal;
}

std::optional<HandlePlacement::Proposal> HandlePlacement::stitch(std::uint64_t bytes, const Spaces& spaces,
                                                                 bool may_grow) const {
  Stitching stitching = Stitcher({&spaces.large, &spaces.small, &spaces.planned}, handle_of()).stitch(bytes, true);
  Proposal proposal;
  proposal.pieces = std::move(stitching.pieces);
  proposal.offset = stitching.offset;
  if (!add_missing(stitching.missing, bytes, may_grow, &proposal)) return std::nullopt;
  join(&proposal);
  return proposal;
}

// The view at whose end most is free: all of that is mapped already.
std::optional<HandlePlacement::Proposal> HandlePlacement::lengthen(std::uint64_t bytes, const Spaces& spaces,
                                                                   bool may_grow) const {
  Proposal proposal;
  std::uint64_t most = round_up(bytes / options_.policy.request_per_free_end, kUnitBytes);
  for (std::uint32_t number = 1; number <= views_.numbers(); ++number) {
    const ViewCache::View& candidate = views_[number];
    const std::uint64_t free = candidate.stitched.free_at_end(space_of(spaces)) / kUnitBytes * kUnitBytes;
    if (free < most || free >= bytes || candidate.bytes() + bytes - free > candidate.room) continue;
    most = free;
    proposal.view = number;
  }
  if (proposal.view == 0) return std::nullopt;
  const ViewCache::View& found = views_[proposal.view];
  FreeSpace in_view;
  for (const Range& piece : found.stitched.pieces()) in_view.add(piece);
  const Stitcher stitcher({&spaces.large, &spaces.small, &spaces.planned}, handle_of());
  Stitching stitching = stitcher.lengthen(bytes - most, in_view);
  proposal.pieces = std::move(stitching.pieces);
  proposal.offset = found.bytes() - most;
  if (!add_missing(stitching.missing, bytes, may_grow, &proposal)) return std::nullopt;
  return found.bytes() + proposal.shown() <= found.room ? std::optional(proposal) : std::nullopt;
}

// New handles behind the pieces of a proposal. False when they may not be, or there is no place for them.
bool HandlePlacement::add_missing(std::uint64_t missing, std::uint64_t request, bool may_grow,
                                  Proposal* proposal) const {
  if (missing == 0) return true;
  const std::uint64_t bytes = round_up(missing, options_.page);
  const auto room = may_grow ? unmapped_.large.best_fit(bytes) : std::nullopt;
  if (!room) return false;
  proposal->grow = new_handles(missing, request, free_bytes() - (request - missing));
  proposal->grow_at = room->begin;
  proposal->pieces.push_back({room->begin, room->begin + bytes});
  return true;
}

// The new handles of a new view are mapped at home anyway. Where the line has room, the old ones are shown right before
// them, so that the new ones are mapped only once. Small requests are left out: they gain more by a view that can be
// lengthened later.
//
//     line   |aa......|bbbb....| ... |  lent  |........|
//                [1]                  [1 again]   [new]
//                                        |..... ........|   the view
void HandlePlacement::join(Proposal* proposal) const {
  if (proposal->grow.empty() || proposal->pieces.size() < 2) return;
  const std::uint64_t grown = proposal->pieces.back().bytes();
  const std::uint64_t old = proposal->shown() - grown;
  if (old + grown < physical_bytes_ / options_.policy.held_per_joined_view) return;
  if (lent_bytes_ + old > options_.large.bytes() / options_.policy.line_per_lent) return;
  const auto room = unmapped_.large.best_fit(old + grown);
  if (!room) return;
  proposal->lent = {room->begin, room->begin + old};
  proposal->grow_at = proposal->lent.end;
  proposal->pieces.back() = {proposal->grow_at, proposal->grow_at + grown};
}

std::vector<std::uint64_t> HandlePlacement::new_handles(std::uint64_t missing, std::uint64_t request,
                                                        std::uint64_t stranded) const {
  return new_handle_sizes(options_.policy,
                          {missing, request, physical_bytes_, stranded, options_.device_bytes, !large_was_freed_},
                          options_.page);
}

}  // namespace stalloc::plan
