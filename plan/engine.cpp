#include "plan/engine.h"

#include <algorithm>
#include <array>
#include <cassert>

#include "plan/plan.h"

namespace stalloc::plan {
namespace {

// Appends `range`; joins it to the last one where they touch.
void append(std::vector<Range>& ranges, Range range) {
  if (range.begin == range.end) return;
  if (!ranges.empty() && ranges.back().end == range.begin) {
    ranges.back().end = range.end;
  } else {
    ranges.push_back(range);
  }
}

// A free range as a piece of a stitched view sees it.
struct Piece {
  std::uint64_t first_page;  // the first page boundary in the range
  std::uint64_t whole;       // bytes of whole pages from there
  std::uint64_t all;         // the same with the part of the last page that is free
};

// The free ranges that hold a page boundary and bytes behind it, but for the one that begins at `head`. No piece ends
// in the page that `head` lies in: a view maps no page twice.
std::vector<Piece> pieces_of(const FreeSpace& space, std::uint64_t page, std::uint64_t head) {
  std::vector<Piece> pieces;
  for (const auto& [begin, end] : space.ranges()) {
    const std::uint64_t first_page = round_up(begin, page);
    if (begin == head || first_page >= end) continue;
    const std::uint64_t whole = (end - first_page) / page * page;
    const bool ends_in_head = end / page == head / page;
    if (whole > 0 || !ends_in_head) pieces.push_back({first_page, whole, ends_in_head ? whole : end - first_page});
  }
  return pieces;
}

// The free range that ends at a page boundary and has most bytes in the page it begins inside; nothing when none does.
std::optional<Range> best_head(const FreeSpace& space, std::uint64_t page) {
  std::optional<Range> best;
  std::uint64_t best_part = 0;
  for (const auto& [begin, end] : space.ranges()) {
    const std::uint64_t part = round_up(begin, page) - begin;
    if (end % page != 0 || part <= best_part) continue;
    best = Range{begin, end};
    best_part = part;
  }
  return best;
}

// The part of a range between multiples of `step`; empty where there is none.
Range within(Range range, std::uint64_t step) {
  range.begin = round_up(range.begin, step);
  range.end = std::max(range.begin, range.end / step * step);
  return range;
}

// Of `count` ranges at most, the first whose part between multiples of `step` has `bytes`; that part.
template <class Iterator>
std::optional<Range> first_within(Iterator at, Iterator end, int count, std::uint64_t bytes, std::uint64_t step) {
  for (; at != end && count > 0; ++at, --count) {
    const auto [from, to] = *at;
    const Range part = within({from, to}, step);
    if (part.bytes() >= bytes) return part;
  }
  return std::nullopt;
}

// What lowest_fit, highest_fit and best_fit find, between multiples of a page.
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

class Engine::Hidden {
 public:
  Hidden(Engine& engine, std::span<const Range> avoid) {
    if (avoid.empty()) return;
    engine.for_each_space([this, avoid](FreeSpace& space) {
      auto& [of, parts] = hidden_.emplace_back(&space, std::vector<Range>());
      for (const Range& range : avoid) space.intersect(range, parts);
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

StitchedView::StitchedView(std::vector<Range> pieces) : pieces_(std::move(pieces)) {
  std::uint64_t start = 0;
  starts_.reserve(pieces_.size() + 1);
  for (const Range& piece : pieces_) {
    starts_.push_back(start);
    start += piece.bytes();
  }
  starts_.push_back(start);
}

void StitchedView::translate(std::uint64_t offset, std::uint64_t bytes, std::vector<Range>& out) const {
  auto i = static_cast<std::size_t>(std::upper_bound(starts_.begin(), starts_.end(), offset) - starts_.begin() - 1);
  const std::uint64_t end = offset + bytes;
  for (; i < pieces_.size() && starts_[i] < end; ++i) {
    const std::uint64_t from = std::max(offset, starts_[i]) - starts_[i];
    const std::uint64_t to = std::min(end, starts_[i + 1]) - starts_[i];
    append(out, {pieces_[i].begin + from, pieces_[i].begin + to});
  }
}

Engine::Engine(const Options& options) : options_(options) {
  const std::size_t kinds = std::size_t{options.streams} + (options.synchronous ? 1 : 0);
  if (kinds > 1) usable_.resize(kinds);
}

void Engine::grow(std::uint64_t pages) {
  const Range range{physical_, physical_ + pages * options_.granularity};
  physical_ = range.end;
  for_each_space([range](FreeSpace& space) { space.add(range); });
}

void Engine::keep_for_synchronous(std::uint64_t bytes) {
  for_each_space([this, bytes](FreeSpace& space) {
    if (&space != &usable(kSynchronous)) space.subtract({0, bytes});
  });
}

const FreeSpace& Engine::usable(StreamIndex stream) const {
  if (usable_.empty()) return free_;
  return stream == kSynchronous ? usable_.back() : usable_[stream];
}

std::uint64_t Engine::free_bytes(StreamIndex stream) const {
  return crosses(stream) ? free_.bytes() : usable(stream).bytes();
}

template <class Function>
void Engine::for_each_space(Function function) {
  function(free_);
  for (FreeSpace& space : usable_) function(space);
}

void Engine::remove(std::span<const Range> ranges) {
  for_each_space([ranges](FreeSpace& space) {
    for (const Range& range : ranges) space.subtract(range);
  });
}

void Engine::add(std::span<const Range> ranges, StreamIndex owner) {
  for (const Range& range : ranges) {
    if (usable_.empty()) {
      free_.add(range);
    } else if (owner == kSynchronous) {
      usable_.back().add(range);
    } else {
      free_.add(range);
      for (StreamIndex s = 0; s < options_.streams; ++s) {
        if (owner == kNoStream || owner == s) usable_[s].add(range);
      }
    }
  }
}

std::optional<Place> Engine::find(const Ask& ask, std::uint64_t step) {
  const FreeSpace& own = usable(ask.stream);
  const bool cross = !usable_.empty() && crosses(ask.stream);
  std::optional<Place> place = find_free(own, ask, step);
  if (!place && cross) place = find_free(free_, ask, step);
  if (!place) place = stitch(own, ask.bytes, step);
  if (!place && cross) place = stitch(free_, ask.bytes, step);
  return place;
}

std::optional<Place> Engine::find_free(const FreeSpace& space, const Ask& ask, std::uint64_t step) const {
  std::optional<Range> range;
  if (step > kUnitBytes) {
    range = paged_fit(space, ask.bytes, ask.fit, step);
  } else {
    if (ask.fit == Fit::Lowest) range = space.lowest_fit(ask.bytes);
    if (ask.fit == Fit::Highest) range = space.highest_fit(ask.bytes);
    if (!range) range = space.best_fit(ask.bytes);
  }
  const bool high = ask.fit == Fit::Highest || ask.fit == Fit::BestHigh;
  if (range) return Place{0, high ? range->end - ask.bytes : range->begin};
  return find_in_views(space, ask.bytes, step);
}

std::optional<Place> Engine::find_in_views(const FreeSpace& space, std::uint64_t bytes, std::uint64_t step) const {
  std::optional<Place> best;
  std::uint64_t best_run = ~std::uint64_t{0};
  for (std::size_t v = 0; v < views_.size(); ++v) {
    const StitchedView& view = views_[v];
    if (view.bytes() < bytes) continue;
    Range run{0, 0};  // the free stretch being followed, as offsets into the view
    const auto finish = [&] {
      const Range part = within(run, step);
      if (part.bytes() < bytes || part.bytes() >= best_run) return;
      best = Place{static_cast<std::uint32_t>(v + 1), part.begin};
      best_run = part.bytes();
    };
    for (std::size_t i = 0; i < view.pieces_.size(); ++i) {
      const Range piece = view.pieces_[i];
      for (auto free = space.at_or_after(piece.begin); free && free->begin < piece.end;
           free = space.at_or_after(free->end)) {
        const std::uint64_t from = view.starts_[i] + std::max(free->begin, piece.begin) - piece.begin;
        const std::uint64_t to = view.starts_[i] + std::min(free->end, piece.end) - piece.begin;
        if (from != run.end) {
          finish();
          run = {from, from};
        }
        run.end = to;
      }
    }
    finish();
  }
  return best;
}

std::optional<Place> Engine::stitch(const FreeSpace& space, std::uint64_t bytes, std::uint64_t step) {
  if (space.bytes() < bytes) return std::nullopt;
  const std::uint64_t page = options_.granularity;
  std::vector<Range> chosen;
  std::uint64_t offset = 0;
  std::uint64_t need = bytes;
  std::uint64_t head_begin = ~std::uint64_t{0};
  if (const auto head = step < page ? best_head(space, page) : std::nullopt) {
    head_begin = head->begin;
    offset = head->begin % page;
    chosen.push_back({head->begin - offset, head->end});
    need -= std::min(need, head->bytes());
  }
  // The longest first, so that they are few; the last is the smallest that is enough, so that the long ones last.
  std::vector<Piece> pieces = pieces_of(space, page, head_begin);
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return a.whole != b.whole ? a.whole < b.whole : a.first_page > b.first_page;
  });
  while (need > 0) {
    const Piece* last = nullptr;
    for (const Piece& piece : pieces) {
      if (piece.all >= need && (last == nullptr || piece.all < last->all)) last = &piece;
    }
    if (last != nullptr) {
      chosen.push_back({last->first_page, last->first_page + round_up(need, page)});
      break;
    }
    if (pieces.empty() || pieces.back().whole == 0) return std::nullopt;
    const Piece longest = pieces.back();
    pieces.pop_back();
    chosen.push_back({longest.first_page, longest.first_page + longest.whole});
    need -= longest.whole;
  }
  views_.emplace_back(std::move(chosen));
  return Place{static_cast<std::uint32_t>(views_.size()), offset};
}

std::optional<Place> Engine::take(const Ask& ask) {
  assert(ask.bytes > 0 && ask.bytes % kUnitBytes == 0);
  const Hidden hidden(*this, ask.avoid);
  const bool paged = ask.bytes % options_.granularity == 0 && ask.stream != kSynchronous;
  std::optional<Place> place = paged ? find(ask, options_.granularity) : std::nullopt;
  if (!place) place = find(ask, kUnitBytes);
  if (place) {
    scratch_.clear();
    translate(*place, ask.bytes, scratch_);
    remove(scratch_);
  }
  return place;
}

bool Engine::take_at(const Ask& ask, Place place) {
  const Hidden hidden(*this, ask.avoid);
  scratch_.clear();
  translate(place, ask.bytes, scratch_);
  const FreeSpace& space = crosses(ask.stream) ? free_ : usable(ask.stream);
  for (const Range& range : scratch_) {
    if (!space.contains(range)) return false;
  }
  remove(scratch_);
  return true;
}

void Engine::give(Place place, std::uint64_t bytes, StreamIndex owner) {
  scratch_.clear();
  translate(place, bytes, scratch_);
  add(scratch_, owner);
}

void Engine::translate(Place place, std::uint64_t bytes, std::vector<Range>& out) const {
  if (place.view == 0) {
    append(out, {place.offset, place.offset + bytes});
  } else {
    views_[place.view - 1].translate(place.offset, bytes, out);
  }
}

}  // namespace stalloc::plan
