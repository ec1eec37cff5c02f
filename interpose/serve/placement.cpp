// The books of a placement: handles, free bytes by stream, views.
#include "interpose/serve/placement.h"

#include <algorithm>

namespace stalloc::serve {
namespace {

void append(std::vector<PhysicalRange>* ranges, PhysicalRange range) {
  if (!ranges->empty() && ranges->back().end == range.begin) {
    ranges->back().end = range.end;
  } else {
    ranges->push_back(range);
  }
}

}  // namespace

Placement::Placement(const Options& options) : options_(options), by_page_(options.small.end / options.page) {
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
  const auto added = handles_.emplace(at, handle).first;
  for (std::uint64_t begin = at; begin < at + handle.bytes; begin += options_.page) {
    by_page_[begin / options_.page] = added;
  }
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

std::uint64_t Placement::free_bytes(Range range) const {
  std::vector<Range> free;
  part(all_, range.begin).intersect(range, free);
  std::uint64_t bytes = 0;
  for (const Range& piece : free) bytes += piece.bytes();
  return bytes;
}

std::uint64_t Placement::largest_free() const {
  return std::max({all_.large.largest(), all_.small.largest(), all_.planned.largest()});
}

}  // namespace stalloc::serve
