#include "interpose/serve/dynamic.h"

#include <algorithm>
#include <array>
#include <utility>

#include "interpose/serve/arena.h"
#include "plan/plan.h"

namespace stalloc::serve {
namespace {

constexpr std::uint64_t kViewAddressesADevice = 16;  // addresses for views, in multiples of the line
constexpr std::size_t kForeignRangesAsked = 4;
constexpr std::size_t kViewsAskedAtOnce = 4;
constexpr std::uint8_t kSparedPages = 4;
constexpr std::uint64_t kAskedBefore = std::uint64_t{64} << 20;  // the device is asked before so much is created

// Three quarters of the line are for handles of large requests, the rest for those of small ones.
Placement::Options placement_options(const HeapOptions& options, Range line, std::uint64_t page) {
  Placement::Options placement;
  const std::uint64_t middle = line.begin + line.bytes() / 4 / page * page * 3;
  placement.page = page;
  placement.large = {line.begin, middle};
  placement.small = {middle + page, line.end};
  placement.small_bytes = options.small_bytes;
  placement.largest_handle = std::max(options.largest_handle / page * page, page);
  placement.stitch = options.stitch;
  placement.smallest_stitched = options.smallest_stitched;
  return placement;
}

}  // namespace

std::uint64_t Dynamic::line_bytes(std::uint64_t device_bytes, std::uint64_t page) {
  return plan::round_up(device_bytes * 2, page) + 8 * page;
}

std::unique_ptr<Dynamic> Dynamic::create(Driver& driver, int device, const HeapOptions& options,
                                         std::uint64_t line_begin, std::uint64_t page, StreamOrder* order,
                                         std::string* why) {
  std::size_t free = 0;
  std::size_t total = 0;
  if (driver.memory_info(&free, &total) != CUDA_SUCCESS) {
    *why = "the driver does not say how much memory the device has";
    return nullptr;
  }
  const std::uint64_t bytes = line_bytes(total, page);
  std::unique_ptr<Mapper> mapper = Mapper::create(driver, device, bytes, bytes * kViewAddressesADevice, why);
  if (!mapper) return nullptr;
  const Range line{line_begin, line_begin + bytes};
  std::unique_ptr<Dynamic> made(
      new Dynamic(driver, options, placement_options(options, line, page), std::move(mapper), order));
  made->line_begin_ = line_begin;
  made->view_addresses_.add({0, bytes * kViewAddressesADevice});
  return made;
}

Dynamic::Dynamic(Driver& driver, const HeapOptions& options, const Placement::Options& placement,
                 std::unique_ptr<Mapper> mapper, StreamOrder* order)
    : driver_(driver),
      page_(placement.page),
      options_(options),
      placement_(placement),
      mapper_(std::move(mapper)),
      order_(*order) {}

Dynamic::~Dynamic() {
  for (std::uint32_t view = 1; view <= placement_.view_numbers(); ++view) {
    if (placement_.view(view).bytes() > 0) drop_view(view);
  }
  for (const auto& [at, handle] : placement_.handles()) {
    const MappedHandle mapped{handle.bytes, handle.id};
    if (handle.planned || mapper_->destroy_at(home_address(at), mapped)) continue;
    mapper_->destroy_at(home_address(at), mapped);  // a second time: nobody comes after this
  }
}

CUdeviceptr Dynamic::home_address(std::uint64_t at) const {
  return at < line_begin_ ? arena_->address(0, at) : mapper_->home(at - line_begin_);
}

CUdeviceptr Dynamic::address(DynamicPlace place) const {
  return place.view == 0 ? home_address(place.offset) : mapper_->view(placement_.view(place.view).at + place.offset);
}

DynamicPlace Dynamic::place(CUdeviceptr address, std::uint32_t view) const {
  if (view != 0) return {view, address - mapper_->view(placement_.view(view).at)};
  if (mapper_->contains(address)) return {0, address - mapper_->home(0) + line_begin_};
  return {0, address - arena_->address(0, 0)};
}

PhysicalRanges Dynamic::ranges(DynamicPlace place, std::uint64_t bytes) {
  scratch_.clear();
  placement_.append_ranges(place, bytes, &scratch_);
  return scratch_;
}

std::optional<DynamicPlace> Dynamic::allocate(std::uint64_t bytes, StreamOrdinal stream, bool last_resort) {
  std::optional<DynamicPlace> place = allocate_own(bytes, stream);
  if (place) return place;
  const bool several = placement_.others_have_bytes(stream);
  if (several) place = allocate_complete(bytes, stream);
  if (!place) place = make(bytes, stream, Reach::Own, false);
  const bool may_wait = several && stream != kNoStream && options_.cross_stream != CrossStream::Never;
  const bool prefers_growing = options_.cross_stream == CrossStream::GrowThenOrder && !last_resort;
  if (!place && may_wait && !last_resort) place = allocate_spared(bytes, stream);
  if (!place && may_wait && !prefers_growing) place = allocate_ordered(bytes, stream, true);
  if (!place) place = make(bytes, stream, Reach::Own, true);
  if (!place && may_wait && prefers_growing) place = allocate_ordered(bytes, stream, true);
  if (!place && several && stream == kNoStream && last_resort) place = allocate_ordered(bytes, stream, true);
  return place;
}

std::optional<DynamicPlace> Dynamic::allocate_own(std::uint64_t bytes, StreamOrdinal stream) {
  if (const auto home = placement_.find_home(bytes, stream, Reach::Own)) {
    if (const auto place = take(*home, bytes, stream, Reach::Own)) return place;
  }
  const auto found = placement_.find_in_views(bytes, stream, Reach::Own);
  const auto place = found ? take(*found, bytes, stream, Reach::Own) : std::nullopt;
  if (place) ++counts_.view_hits;
  return place;
}

// Bytes of other streams whose last use is over.
std::optional<DynamicPlace> Dynamic::allocate_complete(std::uint64_t bytes, StreamOrdinal stream) {
  std::array<Range, kForeignRangesAsked> candidates;
  const std::size_t count = placement_.candidates(bytes, candidates);
  for (std::size_t i = 0; i < count; ++i) {
    const PhysicalRange range{candidates[i].begin, candidates[i].begin + bytes};
    if (!order_.is_complete({&range, 1})) continue;
    ++counts_.borrows;
    return take({0, range.begin}, bytes, stream, Reach::All);
  }
  return std::nullopt;
}

// A few pages of its own for the small requests of a stream, lest two streams take the same bytes from each other at
// every request.
std::optional<DynamicPlace> Dynamic::allocate_spared(std::uint64_t bytes, StreamOrdinal stream) {
  if (bytes > page_ || spared_pages_[stream] == kSparedPages) return std::nullopt;
  const auto place = make(bytes, stream, Reach::Own, true);
  if (place) ++spared_pages_[stream];
  return place;
}

// Bytes of any stream, behind events. For all streams at once (kNoStream): only if they are complete.
std::optional<DynamicPlace> Dynamic::allocate_ordered(std::uint64_t bytes, StreamOrdinal stream, bool may_grow) {
  auto found = placement_.find_home(bytes, stream, Reach::All);
  if (!found) found = placement_.find_in_views(bytes, stream, Reach::All);
  std::optional<DynamicPlace> place;
  if (found) place = take(*found, bytes, stream, Reach::All);
  if (place && place->view != 0) ++counts_.view_hits;
  if (!place) place = make(bytes, stream, Reach::All, may_grow);
  if (place) ++counts_.borrows;
  return place;
}

std::optional<DynamicPlace> Dynamic::take(DynamicPlace place, std::uint64_t bytes, StreamOrdinal stream, Reach reach) {
  const PhysicalRanges wanted = ranges(place, bytes);
  if (!order_.make_ready(wanted, stream)) return std::nullopt;
  placement_.take(wanted, stream, reach);
  if (place.view != 0) {
    StitchedView& view = placement_.view(place.view);
    ++view.live;
    view.used_at = ++clock_;
  }
  return place;
}

bool Dynamic::take_exactly(PhysicalRanges wanted, StreamOrdinal stream) {
  for (const PhysicalRange& range : wanted) {
    if (!placement_.is_free({range.begin, range.end})) return false;
  }
  if (!order_.make_ready(wanted, stream)) return false;
  placement_.take(wanted, stream, Reach::All);
  return true;
}

void Dynamic::free(DynamicPlace place, std::uint64_t bytes, StreamOrdinal stream) {
  placement_.give(ranges(place, bytes), stream);
  if (place.view != 0) --placement_.view(place.view).live;
}

// Makes room out of free handles and, where they are not enough, new ones.
std::optional<DynamicPlace> Dynamic::make(std::uint64_t bytes, StreamOrdinal stream, Reach reach, bool may_grow) {
  const auto proposal = placement_.propose(bytes, stream, reach, may_grow, may_add_view(bytes));
  if (!proposal || !grow(*proposal, stream)) return std::nullopt;
  std::optional<DynamicPlace> place;
  if (proposal->pieces.empty()) {
    place = DynamicPlace{0, proposal->offset};
  } else {
    place = stitch(*proposal);
  }
  if (!place) {
    shrink(*proposal);
    return std::nullopt;
  }
  if (!take(*place, bytes, stream, reach)) {
    if (place->view != 0) drop_view(place->view);
    shrink(*proposal);
    return std::nullopt;
  }
  if (!proposal->grow.empty()) ++counts_.grows;
  return place;
}

// Keeps the cache within its limits: the least recently used views make room if nothing uses them any more.
bool Dynamic::may_add_view(std::uint64_t bytes) {
  const auto has_room = [&] {
    return placement_.view_count() < options_.view_cache_views &&
           placement_.view_bytes() + bytes <= options_.view_cache_bytes;
  };
  for (std::size_t i = 0; i < kViewsAskedAtOnce && !has_room(); ++i) {
    const std::uint32_t oldest = placement_.least_recent_view();
    if (oldest == 0) return false;
    if (is_idle(oldest)) {
      drop_view(oldest);
    } else {
      placement_.view(oldest).used_at = ++clock_;  // asked again when the others have been
    }
  }
  return has_room();
}

bool Dynamic::grow(const Placement::Proposal& proposal, StreamOrdinal stream) {
  if (proposal.grow.empty()) return true;
  handles_.clear();
  std::uint64_t total = 0;
  for (const std::uint64_t bytes : proposal.grow) {
    handles_.push_back({bytes, 0});
    total += bytes;
  }
  if (total >= kAskedBefore && !device_has(total)) return false;
  if (mapper_->create_at(home_address(proposal.grow_at), handles_) != CUDA_SUCCESS) return false;
  std::uint64_t at = proposal.grow_at;
  for (const MappedHandle& handle : handles_) {
    placement_.add_handle(at, {handle.bytes, handle.id, false}, stream);
    created_bytes_ += handle.bytes;
    at += handle.bytes;
  }
  const PhysicalRange grown{proposal.grow_at, at};
  order_.cleared({&grown, 1});
  return true;
}

// Spares the driver many handles of a request that cannot be served, as some programs make to learn what is free.
bool Dynamic::device_has(std::uint64_t bytes) {
  std::size_t free = 0;
  std::size_t total = 0;
  return driver_.memory_info(&free, &total) != CUDA_SUCCESS || free >= bytes;
}

// Undoes `grow`. What the driver refuses to take back stays, free.
void Dynamic::shrink(const Placement::Proposal& proposal) {
  std::uint64_t at = proposal.grow_at;
  for (const std::uint64_t bytes : proposal.grow) {
    const Placement::Handle handle = placement_.handles().at(at);
    if (mapper_->destroy_at(home_address(at), {handle.bytes, handle.id})) {
      placement_.remove_handle(at);
      created_bytes_ -= bytes;
    }
    at += bytes;
  }
}

std::optional<DynamicPlace> Dynamic::stitch(const Placement::Proposal& proposal) {
  handles_of(proposal.pieces, &handles_);
  std::uint64_t bytes = 0;
  for (const MappedHandle& handle : handles_) bytes += handle.bytes;
  const auto room = view_addresses_.best_fit(bytes);
  if (!room) return std::nullopt;
  const std::uint64_t at = room->begin;
  const std::uint32_t view = placement_.add_view(proposal.pieces, at);
  view_addresses_.subtract({at, at + bytes});
  if (mapper_->map_at(mapper_->view(at), handles_) != CUDA_SUCCESS) {
    placement_.remove_view(view);
    view_addresses_.add({at, at + bytes});
    return std::nullopt;
  }
  ++counts_.stitches;
  return DynamicPlace{view, proposal.offset};
}

void Dynamic::handles_of(const std::vector<Range>& pieces, std::vector<MappedHandle>* out) const {
  out->clear();
  for (const Range& piece : pieces) {
    auto handle = placement_.handles().find(piece.begin);
    for (; handle != placement_.handles().end() && handle->first < piece.end; ++handle) {
      out->push_back({handle->second.bytes, handle->second.id});
    }
  }
}

// Nothing lives in it, and what did is over for the device.
bool Dynamic::is_idle(std::uint32_t number) {
  const StitchedView& view = placement_.view(number);
  return view.bytes() > 0 && view.live == 0 && order_.is_complete(ranges({number, 0}, view.bytes()));
}

// False: something of it is still mapped; the addresses are then never used again.
bool Dynamic::drop_view(std::uint32_t number) {
  const StitchedView& view = placement_.view(number);
  const Range addresses{view.at, view.at + view.bytes()};
  handles_of(view.pieces, &handles_);
  const bool unmapped = mapper_->unmap(mapper_->view(view.at), handles_);
  placement_.remove_view(number);
  if (unmapped) view_addresses_.add(addresses);
  return unmapped;
}

void Dynamic::drop_idle_views() {
  for (std::uint32_t view = 1; view <= placement_.view_numbers(); ++view) {
    if (is_idle(view)) drop_view(view);
  }
}

std::uint64_t Dynamic::release_idle(std::uint64_t keep, bool of_plan) {
  FreeSpace in_views;
  for (std::uint32_t view = 1; view <= placement_.view_numbers(); ++view) {
    for (const Range& piece : placement_.view(view).pieces) in_views.add(piece);
  }
  std::vector<std::uint64_t> idle;
  for (const auto& [at, handle] : placement_.handles()) {
    if (handle.planned && !of_plan) continue;
    const PhysicalRange range{at, at + handle.bytes};
    const auto mapped = in_views.at_or_after(at);
    const bool in_view = mapped && mapped->begin < range.end;
    if (!in_view && placement_.is_free({at, range.end}) && order_.is_complete({&range, 1})) idle.push_back(at);
  }
  std::uint64_t released = 0;
  for (; !idle.empty() && placement_.physical_bytes() > keep; idle.pop_back()) {
    const std::uint64_t at = idle.back();
    const Placement::Handle handle = placement_.handles().at(at);
    if (handle.planned) {
      if (arena_->give_back(arena_->handle_at(at)) == 0) continue;
    } else {
      if (!mapper_->destroy_at(home_address(at), {handle.bytes, handle.id})) continue;
      created_bytes_ -= handle.bytes;
    }
    placement_.remove_handle(at);
    released += handle.bytes;
  }
  return released;
}

void Dynamic::adopt(Arena* arena) {
  arena_ = arena;
  for (std::size_t handle = 0; handle < arena->handle_count(); ++handle) {
    const PhysicalRange range = arena->handle_range(handle);
    placement_.adopt_handle(range.begin, {range.end - range.begin, arena->handle_id(handle), true});
  }
}

CUresult Dynamic::grant_access(int peer) noexcept {
  if (!mapper_->remember_peer(peer)) return CUDA_ERROR_OUT_OF_MEMORY;
  for (const auto& [at, handle] : placement_.handles()) {
    if (handle.planned) continue;
    const CUresult result = mapper_->renew_access(home_address(at), handle.bytes);
    if (result != CUDA_SUCCESS) return result;
  }
  for (std::uint32_t number = 1; number <= placement_.view_numbers(); ++number) {
    const StitchedView& view = placement_.view(number);
    if (view.bytes() == 0) continue;
    const CUresult result = mapper_->renew_access(mapper_->view(view.at), view.bytes());
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

}  // namespace stalloc::serve
