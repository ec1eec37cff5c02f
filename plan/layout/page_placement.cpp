// SPDX-License-Identifier: Apache-2.0
#include "plan/layout/page_placement.h"

#include <algorithm>
#include <array>
#include <cassert>

#include "plan/placement/stitching.h"
#include "plan/placement/units.h"

namespace stalloc::plan {
namespace {

// A change of a range is looked up in the spaces of all streams. A look-up takes less time than to examine a range, and
// counts as a sixteenth of it, so that programs with fewer streams than this are planned as if it cost nothing. With
// very many streams, the longest call still takes no longer than with a single one
// (docs/benchmarks/planner/step_streams.txt).
constexpr std::size_t kSpacesPerExamined = 16;

// Examines at most `count` ranges, and returns the first part between multiples of `step` that has `bytes`.
template <class Iterator>
std::optional<Range> first_within(Iterator at, Iterator end, int count, std::uint64_t bytes, std::uint64_t step) {
  for (; at != end && count > 0; ++at, --count) {
    const auto [from, to] = *at;
    const Range part = within({from, to}, step);
    if (part.bytes() >= bytes) return part;
  }
  return std::nullopt;
}

// Finds a range as lowest_fit, highest_fit or best_fit does, but one that begins and ends at multiples of a page.
std::optional<Range> paged_fit(const FreeSpace& space, std::uint64_t bytes, Fit fit, std::uint64_t page) {
  const auto& ranges = space.ranges();
  constexpr int kMost = FreeSpace::kMostLookedAt;
  std::optional<Range> found;
  if (fit == Fit::Lowest) found = first_within(ranges.begin(), ranges.end(), kMost, bytes, page);
  if (fit == Fit::Highest) found = first_within(ranges.rbegin(), ranges.rend(), kMost, bytes, page);
  if (found) return found;
  std::array<Range, 64> fits;
  const auto count = static_cast<int>(space.fits(bytes, fits));
  return first_within(fits.begin(), fits.begin() + count, count, bytes, page);
}

}  // namespace

class PagePlacement::Hidden {
 public:
  Hidden(PagePlacement& placement, std::span<const Range> avoid) {
    if (avoid.empty()) return;
    placement.for_each_space([this, avoid, &placement](FreeSpace& space) {
      auto& [of, parts] = hidden_.emplace_back(&space, std::vector<Range>());
      for (const Range& range : avoid) space.intersect(range, parts);
      placement.examined_ += avoid.size() + parts.size();
      for (const Range& part : parts) of->subtract(part);
    });
  }
  ~Hidden() {
    for (auto& [space, parts] : hidden_) {
      for (const Range& part : parts) space->add(part);
    }
  }
  Hidden(const Hidden&) = delete;
  Hidden& operator=(const Hidden&) = delete;

 private:
  std::vector<std::pair<FreeSpace*, std::vector<Range>>> hidden_;
};

PagePlacement::PagePlacement(const Options& options) : options_(options) {
  const std::size_t kinds = std::size_t{options.streams} + (options.synchronous ? 1 : 0);
  if (kinds > 1) usable_.resize(kinds);
}

void PagePlacement::note_changed(std::size_t ranges) {
  examined_ += ranges * (1 + usable_.size() / kSpacesPerExamined);
}

void PagePlacement::grow(std::uint64_t pages) {
  note_changed(1);
  const Range range{physical_, physical_ + pages * options_.granularity};
  physical_ = range.end;
  for_each_space([range](FreeSpace& space) { space.add(range); });
}

void PagePlacement::keep_for_synchronous(std::uint64_t bytes) {
  for_each_space([this, bytes](FreeSpace& space) {
    if (&space != &usable(kSynchronous)) space.subtract({0, bytes});
  });
}

const FreeSpace& PagePlacement::usable(StreamIndex stream) const {
  if (usable_.empty()) return free_;
  return stream == kSynchronous ? usable_.back() : usable_[stream];
}

std::uint64_t PagePlacement::free_bytes(StreamIndex stream) const {
  return crosses(stream) ? free_.bytes() : usable(stream).bytes();
}

template <class Function>
void PagePlacement::for_each_space(Function function) {
  function(free_);
  for (FreeSpace& space : usable_) function(space);
}

void PagePlacement::remove(std::span<const Range> ranges, StreamIndex stream) {
  note_changed(ranges.size());
  for_each_space([&](FreeSpace& space) {
    const bool of_others = options_.synchronous && (&space == &usable(kSynchronous)) != (stream == kSynchronous);
    for (const Range& range : ranges) space.subtract(of_others ? pages_of(range) : range);
  });
}

// The pages that a range touches.
Range PagePlacement::pages_of(Range range) const {
  const std::uint64_t page = options_.granularity;
  return {range.begin / page * page, round_up(range.end, page)};
}

void PagePlacement::add(std::span<const Range> ranges, StreamIndex owner) {
  note_changed(ranges.size());
  for (const Range& range : ranges) {
    if (usable_.empty()) {
      free_.add(range);
    } else if (owner == kSynchronous) {
      usable_.back().add(range);
    } else {
      free_.add(range);
      for (StreamIndex s = 0; s < options_.streams; ++s) {
        if (owner == kNoOwner || owner == s) usable_[s].add(range);
      }
    }
  }
}

std::optional<Place> PagePlacement::find(const Request& request, std::uint64_t step) {
  const FreeSpace& own = usable(request.stream);
  const bool cross = !usable_.empty() && crosses(request.stream);
  std::optional<Place> place = find_free(own, request, step);
  if (!place && cross) place = find_free(free_, request, step);
  if (!place) place = stitch(own, request.bytes, step);
  if (!place && cross) place = stitch(free_, request.bytes, step);
  return place;
}

std::optional<Place> PagePlacement::find_free(const FreeSpace& space, const Request& request, std::uint64_t step) {
  std::optional<Range> range;
  if (step > kUnitBytes) {
    range = paged_fit(space, request.bytes, request.fit, step);
  } else {
    if (request.fit == Fit::Lowest) range = space.lowest_fit(request.bytes);
    if (request.fit == Fit::Highest) range = space.highest_fit(request.bytes);
    if (!range) range = space.best_fit(request.bytes);
  }
  const bool high = request.fit == Fit::Highest || request.fit == Fit::BestHigh;
  if (range) return Place{0, high ? range->end - request.bytes : range->begin};
  return find_in_views(space, request.bytes, step);
}

std::optional<Place> PagePlacement::find_in_views(const FreeSpace& space, std::uint64_t bytes, std::uint64_t step) {
  const auto space_of = [&space](const Range&) -> const FreeSpace& { return space; };
  // Programs that repeat themselves have tens of views. Requests that never repeat on several streams have thousands,
  // and looking at all of them for each request takes minutes.
  constexpr std::size_t kMostSearched = 256;
  Place best;
  Range shortest;
  for (std::size_t v = views_.size() - std::min(views_.size(), kMostSearched); v < views_.size(); ++v) {
    if (views_[v].bytes() < bytes) continue;
    examined_ += views_[v].pieces().size();
    const Range run = views_[v].shortest_free(bytes, step, space_of);
    if (run.bytes() == 0 || (best.view != 0 && run.bytes() >= shortest.bytes())) continue;
    best = {static_cast<std::uint32_t>(v + 1), run.begin};
    shortest = run;
  }
  return best.view == 0 ? std::nullopt : std::optional(best);
}

std::optional<Place> PagePlacement::stitch(const FreeSpace& space, std::uint64_t bytes, std::uint64_t step) {
  const std::uint64_t page = options_.granularity;
  if (space.bytes() < bytes) return std::nullopt;
  const auto page_of = [page](std::uint64_t at) { return Range{at / page * page, at / page * page + page}; };
  Stitching stitching = Stitcher({&space}, page_of, page).stitch(bytes, step < page);
  // Each piece is the best of all ranges.
  for (auto range = space.ranges().begin(); range != space.ranges().end(); ++range)
    examined_ += stitching.pieces.size();
  if (stitching.missing > 0) return std::nullopt;
  views_.emplace_back(std::move(stitching.pieces));
  return Place{static_cast<std::uint32_t>(views_.size()), stitching.offset};
}

std::optional<Place> PagePlacement::find(const Request& request) {
  const Hidden hidden(*this, request.avoid);
  const bool paged = request.bytes % options_.granularity == 0 && request.stream != kSynchronous;
  const std::optional<Place> place = paged ? find(request, options_.granularity) : std::nullopt;
  return place ? place : find(request, kUnitBytes);
}

std::optional<Place> PagePlacement::take(const Request& request) {
  assert(request.bytes > 0 && request.bytes % kUnitBytes == 0);
  const std::optional<Place> place = find(request);
  if (place) {
    scratch_.clear();
    translate(*place, request.bytes, scratch_);
    remove(scratch_, request.stream);
  }
  return place;
}

bool PagePlacement::take_at(const Request& request, Place place) {
  scratch_.clear();
  translate(place, request.bytes, scratch_);
  {
    const Hidden hidden(*this, request.avoid);
    const FreeSpace& space = crosses(request.stream) ? free_ : usable(request.stream);
    for (const Range& range : scratch_) {
      if (!space.contains(range)) return false;
    }
  }
  remove(scratch_, request.stream);
  return true;
}

void PagePlacement::give(Place place, std::uint64_t bytes, StreamIndex owner) {
  scratch_.clear();
  translate(place, bytes, scratch_);
  add(scratch_, owner);
}

void PagePlacement::translate(Place place, std::uint64_t bytes, std::vector<Range>& out) const {
  if (place.view == 0) {
    append(out, {place.offset, place.offset + bytes});
  } else {
    views_[place.view - 1].translate(place.offset, bytes, out);
  }
}

}  // namespace stalloc::plan
