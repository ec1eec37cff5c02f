// Finding a place in memory that is there: contiguous on the line, or in a stitched view made before.
#include "interpose/serve/placement.h"

#include <algorithm>
#include <array>

namespace stalloc::serve {
namespace {

constexpr std::size_t kViewsLookedAt = 128;
constexpr std::size_t kRangesCompared = 16;
constexpr std::uint64_t kPagesCompared = 4;  // for requests below so many pages the best fit is good enough

}  // namespace

std::uint64_t Placement::find_on_line(std::uint64_t bytes, StreamOrdinal stream, Reach reach) const {
  const Spaces& spaces = reachable(stream, reach);
  const bool small = bytes < options_.small_bytes;
  std::uint64_t at = gentlest_fit(small ? spaces.small : spaces.large, bytes);
  if (at == kNowhere) at = gentlest_fit(small ? spaces.large : spaces.small, bytes);
  if (at == kNowhere) at = gentlest_fit(spaces.planned, bytes);
  return at;
}

// Of the best-fitting ranges and their two ends, the place that strands fewest bytes: free ones beside the request in
// handles that it takes a part of. A handle can be mapped only whole, so no stitched view can use them. Those that were
// stranded before count half. Small requests lie in handles of one page: their end does not matter.
std::uint64_t Placement::gentlest_fit(const FreeSpace& space, std::uint64_t bytes) const {
  const auto fit = space.best_fit(bytes);
  if (!fit) return kNowhere;
  if (fit->bytes() == bytes || bytes < options_.small_bytes) return fit->begin;
  std::array<Range, kRangesCompared> ranges;
  const std::size_t most = bytes < kPagesCompared * options_.page ? 1 : kRangesCompared;
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
std::uint64_t Placement::stranded_by(Range free, Range taken) const {
  const bool above = taken.begin == free.begin;
  const auto handle = holding(above ? taken.end - 1 : taken.begin);
  const Range whole{handle->first, handle->first + handle->second.bytes};
  const std::uint64_t left = above ? std::min(whole.end, free.end) - std::min(taken.end, whole.end)
                                   : taken.begin - std::max(whole.begin, free.begin);
  const bool was_whole = whole.begin >= free.begin && whole.end <= free.end;
  return was_whole ? 2 * left : left;
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
      const std::uint64_t next_run = run.end == view.starts[i] ? run.begin : view.starts[i];
      if (view.bytes() - next_run < bytes) break;  // too little of the view is left
      const Range piece = view.pieces[i];
      const FreeSpace& space = part(spaces, piece.begin);
      const auto end = space.ranges().end();
      for (auto free = space.from(piece.begin); free != end && free->first < piece.end; ++free) {
        const std::uint64_t from = view.starts[i] + std::max(free->first, piece.begin) - piece.begin;
        const std::uint64_t to = view.starts[i] + std::min(free->second, piece.end) - piece.begin;
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

}  // namespace stalloc::serve
