#include "plan/online/online_allocator.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

namespace stalloc::plan {
namespace {

constexpr std::uint64_t kLine = 4;         // the line, in multiples of what lives at once, for each kind of handles
constexpr std::uint64_t kSparePages = 64;  // and beside that

}  // namespace

HandlePlacement::Options OnlineAllocator::options(std::uint64_t page, std::uint64_t live_bytes) {
  HandlePlacement::Options options;
  options.page = std::bit_ceil(page);
  const std::uint64_t part = round_up(kLine * live_bytes, options.page) + kSparePages * options.page;
  options.large = {0, part};
  options.small = {part + options.page, 2 * part + options.page};
  return options;
}

std::optional<Place> OnlineAllocator::allocate(std::uint64_t bytes, StreamIndex stream) {
  ++requests_;
  if (last_free_.bytes == bytes && last_free_.stream == stream) return std::exchange(last_free_, {}).place;
  enter_last_free();
  Reach reach = Reach::Own;
  std::optional<Place> place = find(bytes, stream, reach);
  if (!place) {
    const bool stitch = !pace_.spares_stitching(requests_, placement_.physical_bytes(), placement_.free_bytes());
    const bool several = placement_.others_have_bytes(stream);
    place = make(bytes, stream, reach, false, stitch);
    if (!place && several && may_spare(bytes, stream)) place = make(bytes, stream, reach, true, stitch);
    if (!place && several) {
      reach = Reach::All;
      place = find(bytes, stream, reach);
    }
    if (!place) place = make(bytes, stream, reach, true, stitch);
  }
  if (place) placement_.take(ranges(*place, bytes), stream, reach);
  return place;
}

void OnlineAllocator::free(Place place, std::uint64_t bytes, StreamIndex stream) {
  enter_last_free();
  last_free_ = {place, bytes, stream};
  if (bytes > placement_.policy().last_free_bytes) enter_last_free();
}

void OnlineAllocator::enter_last_free() {
  const Block block = std::exchange(last_free_, {});
  if (block.bytes > 0) placement_.give(ranges(block.place, block.bytes), block.stream);
}

std::optional<Place> OnlineAllocator::find(std::uint64_t bytes, StreamIndex stream, Reach reach) const {
  const std::optional<Place> home = placement_.find_home(bytes, stream, reach);
  return home ? home : placement_.find_in_views(bytes, stream, reach);
}

std::optional<Place> OnlineAllocator::make(std::uint64_t bytes, StreamIndex stream, Reach reach, bool may_grow,
                                           bool may_stitch) {
  const auto proposal = placement_.propose(bytes, stream, reach, may_grow, may_stitch);
  if (!proposal) return std::nullopt;
  std::uint64_t at = proposal->grow_at;
  for (const std::uint64_t handle : proposal->grow) {
    placement_.add_handle(at, {handle, 0, false}, stream);
    at += handle;
  }
  counts_.handles += proposal->grow.size();
  if (proposal->pieces.empty()) return Place{0, proposal->offset};
  const HandlePlacement::Handles& handles = placement_.handles();
  for (const Range& piece : proposal->mapped()) {
    const auto shown = std::distance(handles.lower_bound(piece.begin), handles.lower_bound(piece.end));
    counts_.mapped += static_cast<std::uint64_t>(shown);
  }
  if (proposal->view != 0) {
    ++counts_.lengthened;
    placement_.views().lengthen(proposal->view, proposal->pieces);
    return Place{proposal->view, proposal->offset};
  }
  ++counts_.views;
  const bool lies_on_line = proposal->lent.bytes() > 0;
  if (lies_on_line) placement_.lend_line(proposal->lent);
  const std::uint64_t room = lies_on_line ? proposal->shown() : placement_.policy().view_room * proposal->shown();
  return Place{placement_.views().add(proposal->pieces, 0, room, proposal->lent), proposal->offset};
}

bool OnlineAllocator::may_spare(std::uint64_t bytes, StreamIndex stream) {
  if (spared_.size() <= stream) spared_.resize(std::size_t{stream} + 1);
  if (bytes > placement_.page() || spared_[stream] >= placement_.policy().spared_pages) return false;
  ++spared_[stream];
  return true;
}

const std::vector<Range>& OnlineAllocator::ranges(Place place, std::uint64_t bytes) {
  ranges_.clear();
  placement_.translate(place, bytes, ranges_);
  return ranges_;
}

}  // namespace stalloc::plan
