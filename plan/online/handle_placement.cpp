// SPDX-License-Identifier: Apache-2.0
// The state of a placement: handles, and free bytes by stream.
#include "plan/online/handle_placement.h"

#include <algorithm>
#include <bit>

#include "plan/online/growth.h"
#include "plan/placement/units.h"

namespace stalloc::plan {

HandlePlacement::HandlePlacement(const Options& options)
    : options_(options),
      in_handle_(options.small.end / options.page),
      page_shift_(static_cast<unsigned>(std::countr_zero(options.page))),
      free_pages_(options.small.begin, options.page) {
  unmapped_.planned.add(options.step_plan);
  unmapped_.large.add(options.large);
  unmapped_.small.add(options.small);
}

const HandlePlacement::Spaces& HandlePlacement::spaces_in(StreamIndex stream, StreamScope scope) const {
  if (scope == StreamScope::None) return none_;
  if (scope == StreamScope::All || (!several_ && stream == first_)) return all_;
  return stream < own_.size() && own_[stream] ? *own_[stream] : none_;
}

// Notes that the stream has free bytes. Once a second stream has some, the free bytes of each stream are also kept
// apart, except as `Options::large_by_stream` says. Pre: no second stream has had any.
void HandlePlacement::know(StreamIndex stream) {
  if (!any_) first_ = stream;
  any_ = true;
  if (stream == first_) return;
  own(first_) = all_;
  several_ = true;
  if (must_find_own(first_)) own(first_).large.clear();
}

void HandlePlacement::find_own(StreamIndex stream, const std::function<bool(Range)>& is_ready) {
  if (!must_find_own(stream)) return;
  FreeSpace& found = own(stream).large;
  found.clear();
  for (const auto& [begin, end] : all_.large.ranges()) {
    const Range free{begin, end};
    if (is_ready(free)) {
      found.add(free);
      continue;
    }
    for_each_handle(free, [&](Range handle) {
      const Range part{std::max(handle.begin, free.begin), std::min(handle.end, free.end)};
      if (is_ready(part)) found.add(part);
    });
  }
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

void HandlePlacement::take(std::span<const Range> ranges, StreamIndex stream, StreamScope scope) {
  for (const Range& range : ranges) {
    part(all_, range.begin).subtract({range.begin, range.end});
    if (!is_for_small(range.begin)) free_pages_.take(range);
    if (several_) take_own(range, stream, scope);
  }
}

// Each free byte belongs to one stream: with StreamScope::All, mostly to the one that takes it, or else to another one.
void HandlePlacement::take_own(Range range, StreamIndex stream, StreamScope scope) {
  std::uint64_t left = range.bytes();
  const auto take_from = [&](Spaces& spaces) {
    FreeSpace& space = part(spaces, range.begin);
    const std::uint64_t bytes = space.bytes();
    space.subtract(range);
    left -= bytes - space.bytes();
  };
  if (!is_by_stream(range.begin)) {
    if (own_[kAnyStream] && own_[kAnyStream]->large.bytes() > 0) take_from(*own_[kAnyStream]);
    return;
  }
  if (scope != StreamScope::All) return take_from(own(stream));
  if (stream < own_.size() && own_[stream]) take_from(*own_[stream]);
  for (auto spaces = own_.begin(); left > 0 && spaces != own_.end(); ++spaces) {
    if (*spaces) take_from(**spaces);
  }
}

void HandlePlacement::give(std::span<const Range> ranges, StreamIndex stream) {
  if (!several_) know(stream);
  for (const Range& range : ranges) {
    const Range around = part(all_, range.begin).add({range.begin, range.end});
    if (!is_for_small(range.begin)) free_pages_.give(range, around);
    if (several_ && (is_by_stream(range.begin) || stream == kAnyStream)) {
      part(own(stream), range.begin).add({range.begin, range.end});
    }
  }
}

void HandlePlacement::add_handle(std::uint64_t at, const Handle& handle, StreamIndex stream) {
  adopt_handle(at, handle);
  const Range range{at, at + handle.bytes};
  give({&range, 1}, stream);
}

void HandlePlacement::adopt_handle(std::uint64_t at, const Handle& handle) {
  part(unmapped_, at).subtract({at, at + handle.bytes});
  const auto pages = static_cast<std::uint32_t>(handle.bytes >> page_shift_);
  for (std::uint32_t page = 0; page < pages; ++page) in_handle_[(at >> page_shift_) + page] = {page, pages};
  handles_.emplace(at, handle);
  physical_bytes_ += handle.bytes;
  if (is_for_small(at)) bytes_for_small_ += handle.bytes;
  peak_physical_bytes_ = std::max(peak_physical_bytes_, physical_bytes_);
}

void HandlePlacement::disown_handle(std::uint64_t at) noexcept {
  const auto found = handles_.find(at);
  physical_bytes_ -= found->second.bytes;
  if (is_for_small(at)) bytes_for_small_ -= found->second.bytes;
  handles_.erase(found);
}

void HandlePlacement::prepare_removal(std::uint64_t at) {
  part(all_, at).make_room();
  part(unmapped_, at).make_room();
  for (const auto& spaces : own_) {
    if (spaces) part(*spaces, at).make_room();
  }
}

void HandlePlacement::remove_handle(std::uint64_t at) {
  const Handle& handle = handles_.find(at)->second;
  const Range range{at, at + handle.bytes};
  take({&range, 1}, 0, StreamScope::All);
  if (!handle.in_arena) part(unmapped_, at).add(range);
  disown_handle(at);
}

// Whole pages have a bit each, which is faster to look at than the set of free ranges.
bool HandlePlacement::is_free(Range range) const {
  const bool has_bits = !is_for_small(range.begin) && (range.begin | range.end) % options_.page == 0;
  return has_bits ? free_pages_.holds(range) : part(all_, range.begin).contains(range);
}

std::vector<std::uint64_t> HandlePlacement::free_pages_for_small() const {
  std::vector<std::uint64_t> pages;
  for (const auto& [begin, end] : all_.small.ranges()) {
    for (std::uint64_t at = round_up(begin, options_.page); at + options_.page <= end; at += options_.page) {
      pages.push_back(at);
    }
  }
  return pages;
}

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

}  // namespace stalloc::plan
