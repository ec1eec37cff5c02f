// SPDX-License-Identifier: Apache-2.0
// Finding a place in memory that is there: contiguous in the home view, or in a stitched view made before.
#include "plan/online/handle_placement.h"

#include <algorithm>
#include <array>

namespace stalloc::plan {

std::uint64_t HandlePlacement::find_contiguous(std::uint64_t bytes, StreamIndex stream, StreamScope scope) const {
  const Spaces& spaces = spaces_in(stream, scope);
  std::uint64_t at = least_stranding_fit(is_small(bytes) ? spaces.small : spaces.large, bytes);
  if (at == kNowhere && is_small(bytes)) {
    const FreeSpace& large = must_find_own(stream) ? all_.large : spaces.large;
    if (prefers_large(large)) at = least_stranding_fit(large, bytes);
  }
  if (at == kNowhere) {
    const FreeSpace& planned = planned_of(spaces);
    const auto fit = planned.lowest_fit(bytes);
    at = fit ? fit->begin : least_stranding_fit(planned, bytes);
  }
  return at;
}

// True when a small request should lie among large ones: another page for small requests would make memory exceed its
// previous peak, small requests have much memory already, and a page is free among large ones.
bool HandlePlacement::prefers_large(const FreeSpace& large) const {
  const std::uint64_t divisor = options_.policy.held_per_small;
  return divisor != 0 && physical_bytes_ + options_.page > peak_physical_bytes_ &&
         bytes_for_small_ > physical_bytes_ / divisor && large.largest() >= options_.page;
}

// Finds the place, among the two ends of the best-fitting ranges, that strands the fewest bytes. Stranded bytes are
// free bytes beside the request in handles that it uses in part: a handle can be mapped only whole, so a stitched view
// can use them only at its ends. Bytes that were stranded before count half. A small request takes the best fit as it
// is, since most handles for small requests have one page.
std::uint64_t HandlePlacement::least_stranding_fit(const FreeSpace& space, std::uint64_t bytes) const {
  const auto fit = space.best_fit(bytes);
  if (!fit) return kNowhere;
  if (fit->bytes() == bytes || is_small(bytes)) return fit->begin;
  std::array<Range, kMostCompared> ranges;
  const std::size_t most = bytes / options_.page < options_.policy.compared_pages ? 1 : compared_fits();
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

// Returns how much the request would strand, in half bytes. Pre: `taken` lies at one end of `free`, so that free bytes
// are left only on its other side.
std::uint64_t HandlePlacement::stranded_by(Range free, Range taken) const {
  const bool above = taken.begin == free.begin;
  const Range whole = handle_at(above ? taken.end - 1 : taken.begin);
  const std::uint64_t left = above ? std::min(whole.end, free.end) - std::min(taken.end, whole.end)
                                   : taken.begin - std::max(whole.begin, free.begin);
  const bool was_whole = whole.begin >= free.begin && whole.end <= free.end;
  return was_whole ? 2 * left : left;
}

std::size_t HandlePlacement::candidates(std::uint64_t bytes, std::span<Range> out, bool among_large) const {
  const bool small = is_small(bytes) && !among_large;
  const std::size_t count = (small ? all_.small : all_.large).fits(bytes, out);
  return count + planned_of(all_).fits(bytes, out.subspan(count));
}

std::optional<Place> HandlePlacement::find_in_views(std::uint64_t bytes, StreamIndex stream, StreamScope scope) {
  if (is_small(bytes)) return std::nullopt;
  const Spaces& spaces = spaces_in(stream, scope);
  Place best;
  Range shortest;
  std::size_t looked_at = 0;
  for (const ViewCache::Entry& entry : views_.from(bytes)) {
    if (looked_at++ == options_.policy.searched_views) break;
    ViewCache::CachedView& candidate = views_[entry.number];
    if (entry.bytes - candidate.live < bytes) continue;
    const StitchedView& view = candidate.stitched;
    if (!free_pages_.may_hold(view.pieces(), entry.bytes, bytes, &candidate.obstacles)) continue;
    const Range run = view.shortest_free(bytes, kUnitBytes, space_of(spaces));
    if (run.bytes() == 0 || (best.view != 0 && run.bytes() >= shortest.bytes())) continue;
    best = {entry.number, run.begin};
    shortest = run;
    if (shortest.bytes() == bytes) break;
  }
  return best.view == 0 ? std::nullopt : std::optional(best);
}

}  // namespace stalloc::plan
