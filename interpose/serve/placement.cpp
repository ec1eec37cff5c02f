#include "interpose/serve/placement.h"

#include <algorithm>
#include <bit>

#include "plan/plan.h"

namespace stalloc::serve {
namespace {

constexpr std::size_t kViewsLookedAt = 512;
constexpr std::uint64_t kHandlesARequest = 8;  // a large request is made of about so many

void append(std::vector<PhysicalRange>* ranges, PhysicalRange range) {
  if (!ranges->empty() && ranges->back().end == range.begin) {
    ranges->back().end = range.end;
  } else {
    ranges->push_back(range);
  }
}

}  // namespace

// A free range as a piece of a stitched view sees it.
struct Placement::Piece {
  std::uint64_t first = 0;  // the first handle that begins in the range
  std::uint64_t whole = 0;  // bytes of whole handles from there
  std::uint64_t all = 0;    // the same with the free part of the last handle
};

Placement::Placement(const Options& options) : options_(options) {
  unmapped_.large.add(options.large);
  unmapped_.small.add(options.small);
}

const Placement::Spaces& Placement::reachable(StreamOrdinal stream, Reach reach) const {
  static const Spaces kNothing;
  if (reach == Reach::All || (!several_ && stream == first_)) return all_;
  return stream < own_.size() && own_[stream] ? *own_[stream] : kNothing;
}

// The stream gets bytes of its own: from the second stream on, each has its own books.
void Placement::know(StreamOrdinal stream) {
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

Placement::Spaces& Placement::own(StreamOrdinal stream) {
  if (own_.size() <= stream) own_.resize(std::size_t{stream} + 1);
  if (!own_[stream]) own_[stream] = std::make_unique<Spaces>();
  return *own_[stream];
}

std::optional<DynamicPlace> Placement::find_home(std::uint64_t bytes, StreamOrdinal stream, Reach reach) const {
  const Spaces& spaces = reachable(stream, reach);
  const bool small = bytes < options_.small_bytes;
  std::optional<std::uint64_t> at = gentlest_fit(small ? spaces.small : spaces.large, bytes);
  if (!at) at = gentlest_fit(small ? spaces.large : spaces.small, bytes);
  if (!at) at = gentlest_fit(spaces.planned, bytes);
  if (!at) return std::nullopt;
  return DynamicPlace{0, *at};
}

// In the best fit, the end that leaves fewer bytes in handles that it breaks: those wholly free before, which a
// stitched view could have used, and not any more. Small requests lie in handles of one page: their end does not
// matter.
std::optional<std::uint64_t> Placement::gentlest_fit(const FreeSpace& space, std::uint64_t bytes) const {
  const auto fit = space.best_fit(bytes);
  if (!fit) return std::nullopt;
  if (fit->bytes() == bytes || bytes < options_.small_bytes) return fit->begin;
  const std::uint64_t high = fit->end - bytes;
  const std::uint64_t broken_low = broken_by(*fit, {fit->begin, fit->begin + bytes});
  return broken_low <= broken_by(*fit, {high, fit->end}) ? fit->begin : high;
}

// Bytes left free in handles that lie in `free` as a whole and in `taken`, one of its ends, in part.
std::uint64_t Placement::broken_by(Range free, Range taken) const {
  const std::uint64_t cut = taken.begin == free.begin ? taken.end : taken.begin;
  const auto handle = holding(cut);
  const Range whole{handle->first, handle->first + handle->second.bytes};
  if (whole.begin == cut || whole.begin < free.begin || whole.end > free.end) return 0;
  return taken.begin == free.begin ? whole.end - cut : cut - whole.begin;
}

std::size_t Placement::candidates(std::uint64_t bytes, std::span<Range> out) const {
  const bool small = bytes < options_.small_bytes;
  std::size_t count = 0;
  for (const FreeSpace* space : {small ? &all_.small : &all_.large, small ? &all_.large : &all_.small, &all_.planned}) {
    count += space->fits(bytes, out.subspan(count));
  }
  return count;
}

std::optional<DynamicPlace> Placement::find_in_views(std::uint64_t bytes, StreamOrdinal stream, Reach reach) const {
  const Spaces& spaces = reachable(stream, reach);
  std::optional<DynamicPlace> best;
  std::uint64_t best_run = ~std::uint64_t{0};
  std::size_t looked_at = 0;
  for (auto at = by_bytes_.lower_bound(bytes); at != by_bytes_.end() && looked_at < kViewsLookedAt; ++at, ++looked_at) {
    const StitchedView& view = views_[at->second - 1];
    Range run{0, 0};  // the free stretch being followed, as offsets into the view
    const auto finish = [&] {
      if (run.bytes() < bytes || run.bytes() >= best_run) return;
      best = DynamicPlace{at->second, run.begin};
      best_run = run.bytes();
    };
    for (std::size_t i = 0; i < view.pieces.size(); ++i) {
      const Range piece = view.pieces[i];
      const FreeSpace& space = part(spaces, piece.begin);
      for (auto free = space.at_or_after(piece.begin); free && free->begin < piece.end;
           free = space.at_or_after(free->end)) {
        const std::uint64_t from = view.starts[i] + std::max(free->begin, piece.begin) - piece.begin;
        const std::uint64_t to = view.starts[i] + std::min(free->end, piece.end) - piece.begin;
        if (from != run.end) {
          finish();
          run = {from, from};
        }
        run.end = to;
      }
    }
    finish();
    if (best_run == bytes) break;
  }
  return best;
}

std::optional<Placement::Proposal> Placement::propose(std::uint64_t bytes, StreamOrdinal stream, Reach reach,
                                                      bool may_grow, bool may_stitch) const {
  const Spaces& spaces = reachable(stream, reach);
  std::optional<Proposal> extended;
  if (may_grow) extended = extend(bytes, spaces);
  if (!may_stitch || !options_.stitch || bytes < std::max(options_.smallest_stitched, options_.small_bytes))
    return extended;
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

Placement::Handles::const_iterator Placement::holding(std::uint64_t at) const {
  return std::prev(handles_.upper_bound(at));
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

// Handles that hold `missing` bytes of a request and less than a page more. Their size follows the request's, so that
// mapping is cheap; the remainder is made of smaller ones, so that no memory is wasted.
std::vector<std::uint64_t> Placement::new_handles(std::uint64_t missing, std::uint64_t request) const {
  const std::uint64_t wanted = std::bit_floor(std::max(request / kHandlesARequest, options_.page));
  std::uint64_t bytes = std::min(wanted, options_.largest_handle);
  std::vector<std::uint64_t> handles;
  for (std::uint64_t left = plan::round_up(missing, options_.page); left > 0; left -= bytes) {
    while (bytes > left) bytes /= 2;
    handles.push_back(bytes);
  }
  return handles;
}

std::optional<std::uint64_t> Placement::room_for(std::uint64_t bytes, bool small) const {
  const auto room = (small ? unmapped_.small : unmapped_.large).best_fit(bytes);
  if (!room) return std::nullopt;
  return room->begin;
}

void Placement::append_ranges(DynamicPlace place, std::uint64_t bytes, std::vector<PhysicalRange>* out) const {
  if (place.view == 0) {
    append(out, {place.offset, place.offset + bytes});
    return;
  }
  const StitchedView& view = views_[place.view - 1];
  const std::uint64_t end = place.offset + bytes;
  auto i = static_cast<std::size_t>(std::upper_bound(view.starts.begin(), view.starts.end(), place.offset) -
                                    view.starts.begin() - 1);
  for (; i < view.pieces.size() && view.starts[i] < end; ++i) {
    const std::uint64_t from = std::max(place.offset, view.starts[i]) - view.starts[i];
    const std::uint64_t to = std::min(end, view.starts[i + 1]) - view.starts[i];
    append(out, {view.pieces[i].begin + from, view.pieces[i].begin + to});
  }
}

void Placement::take(PhysicalRanges ranges, StreamOrdinal stream, Reach reach) {
  for (const PhysicalRange& range : ranges) {
    part(all_, range.begin).subtract({range.begin, range.end});
    if (!several_) continue;
    if (reach == Reach::Own) {
      part(own(stream), range.begin).subtract({range.begin, range.end});
      continue;
    }
    for (const auto& spaces : own_) {
      if (spaces) part(*spaces, range.begin).subtract({range.begin, range.end});
    }
  }
}

void Placement::give(PhysicalRanges ranges, StreamOrdinal stream) {
  know(stream);
  for (const PhysicalRange& range : ranges) {
    part(all_, range.begin).add({range.begin, range.end});
    if (several_) part(own(stream), range.begin).add({range.begin, range.end});
  }
}

void Placement::add_handle(std::uint64_t at, const Handle& handle, StreamOrdinal stream) {
  adopt_handle(at, handle);
  const PhysicalRange range{at, at + handle.bytes};
  give({&range, 1}, stream);
}

void Placement::adopt_handle(std::uint64_t at, const Handle& handle) {
  handles_.emplace(at, handle);
  physical_bytes_ += handle.bytes;
  part(unmapped_, at).subtract({at, at + handle.bytes});
}

void Placement::remove_handle(std::uint64_t at) {
  const auto found = handles_.find(at);
  const PhysicalRange range{at, at + found->second.bytes};
  take({&range, 1}, 0, Reach::All);
  if (!found->second.planned) part(unmapped_, at).add({range.begin, range.end});
  physical_bytes_ -= found->second.bytes;
  handles_.erase(found);
}

bool Placement::is_free(Range range) const { return part(all_, range.begin).contains(range); }

std::uint32_t Placement::add_view(std::vector<Range> pieces, std::uint64_t at) {
  if (unused_views_.empty()) {
    views_.emplace_back();
    unused_views_.push_back(static_cast<std::uint32_t>(views_.size()));
  }
  const std::uint32_t number = unused_views_.back();
  StitchedView made;
  made.at = at;
  std::uint64_t start = 0;
  for (const Range& piece : pieces) {
    made.starts.push_back(start);
    start += piece.bytes();
  }
  made.starts.push_back(start);
  made.pieces = std::move(pieces);
  by_bytes_.emplace(start, number);
  view(number) = std::move(made);
  view_bytes_ += start;
  unused_views_.pop_back();
  return number;
}

void Placement::remove_view(std::uint32_t number) {
  unused_views_.push_back(number);
  StitchedView& gone = view(number);
  const auto [first, last] = by_bytes_.equal_range(gone.bytes());
  by_bytes_.erase(std::find_if(first, last, [&](const auto& entry) { return entry.second == number; }));
  view_bytes_ -= gone.bytes();
  gone = {};
}

std::uint32_t Placement::least_recent_view() const {
  std::uint32_t oldest = 0;
  for (std::uint32_t number = 1; number <= view_numbers(); ++number) {
    const StitchedView& candidate = view(number);
    if (candidate.bytes() == 0 || candidate.live > 0) continue;
    if (oldest == 0 || candidate.used_at < view(oldest).used_at) oldest = number;
  }
  return oldest;
}

std::uint64_t Placement::largest_free() const {
  return std::max({all_.large.largest(), all_.small.largest(), all_.planned.largest()});
}

}  // namespace stalloc::serve
