#include "interpose/serve/dynamic.h"

#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include "interpose/serve/arena.h"
#include "plan/plan.h"

namespace stalloc::serve {
namespace {

constexpr std::uint64_t kViewAddressesADevice = 16;  // addresses for views, in multiples of the line
constexpr std::size_t kForeignRangesAsked = 4;
constexpr std::size_t kViewsAskedAtOnce = 4;

// Three quarters of the line are for handles of large requests, the rest for those of small ones.
HandlePlacement::Options placement_options(const HeapOptions& options, Range line, std::uint64_t page,
                                           std::uint64_t device_bytes) {
  HandlePlacement::Options placement;
  const std::uint64_t middle = line.begin + line.bytes() / 4 / page * page * 3;
  placement.page = page;
  placement.device_bytes = device_bytes;
  placement.large = {line.begin, middle};
  placement.small = {middle + page, line.end};
  placement.policy = options.policy;
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
      new Dynamic(driver, options, placement_options(options, line, page, total), std::move(mapper), order));
  made->line_begin_ = line_begin;
  made->view_addresses_.add({0, bytes * kViewAddressesADevice});
  return made;
}

Dynamic::Dynamic(Driver& driver, const HeapOptions& options, const HandlePlacement::Options& placement,
                 std::unique_ptr<Mapper> mapper, StreamOrder* order)
    : driver_(driver),
      page_(placement.page),
      options_(options),
      placement_(placement),
      mapper_(std::move(mapper)),
      order_(*order),
      pace_(options.policy) {}

Dynamic::~Dynamic() { close(); }

void Dynamic::close() noexcept {
  if (closed_) return;
  closed_ = true;
  try {
    unmap_all();
  } catch (const std::bad_alloc&) {
    // What is still mapped stays so.
  }
  mapper_->close();
  created_bytes_ = 0;
}

void Dynamic::unmap_all() {
  for (std::uint32_t view = 1; view <= placement_.views().numbers(); ++view) {
    if (placement_.views()[view].bytes() > 0) drop_view(view);
  }
  for (const auto& [at, handle] : placement_.handles()) {
    const MappedHandle mapped{handle.bytes, handle.id};
    if (handle.planned || mapper_->destroy_at(home_address(at), mapped)) continue;
    mapper_->destroy_at(home_address(at), mapped);  // a second time: nobody comes after this
  }
}

CUdeviceptr Dynamic::planned_address(std::uint64_t at) const { return arena_->address(0, at); }

Place Dynamic::place(CUdeviceptr address, std::uint32_t view) const {
  if (view != 0) return {view, address - this->address(placement_.views()[view])};
  if (mapper_->contains(address)) return {0, address - mapper_->home(0) + line_begin_};
  return {0, address - arena_->address(0, 0)};
}

PhysicalRanges Dynamic::ranges_of_view(Place place, std::uint64_t bytes) {
  in_view_.clear();
  placement_.translate(place, bytes, in_view_);
  return in_view_;
}

std::optional<Place> Dynamic::allocate(std::uint64_t bytes, StreamOrdinal stream, bool last_resort) {
  ++requests_;
  const bool shares =
      options_.cross_stream == CrossStream::Share && bytes >= options_.policy.small_bytes && stream != kNoStream;
  std::optional<Place> place = allocate_free(bytes, stream, shares ? Reach::All : Reach::Own);
  if (place) return place;
  may_stitch_ = last_resort || !pace_.spares_stitching(requests_, placement_.physical_bytes(), placement_.free_bytes());
  if (shares) place = make(bytes, stream, Reach::All, true);
  const bool several = placement_.others_have_bytes(stream);
  if (!place && several) place = allocate_complete(bytes, stream);
  if (!place) place = make(bytes, stream, Reach::Own, false);
  const bool may_wait = several && stream != kNoStream && options_.cross_stream != CrossStream::Never;
  const bool prefers_growing = options_.cross_stream == CrossStream::GrowThenOrder && !last_resort;
  if (!place && may_wait && !last_resort) place = allocate_spared(bytes, stream);
  if (!place && may_wait && !prefers_growing) place = allocate_ordered(bytes, stream);
  if (!place) place = make(bytes, stream, Reach::Own, true);
  if (!place && may_wait && prefers_growing) place = allocate_ordered(bytes, stream);
  if (!place && several && stream == kNoStream && last_resort) place = allocate_ordered(bytes, stream);
  if (!place) place = make(bytes, stream, Reach::None, true);
  return place;
}

// What is free and mapped.
std::optional<Place> Dynamic::allocate_free(std::uint64_t bytes, StreamOrdinal stream, Reach reach) {
  const auto home = placement_.find_home(bytes, stream, reach);
  if (home && take(*home, bytes, stream, reach)) return home;
  const auto found = placement_.find_in_views(bytes, stream, reach);
  if (!found || !take(*found, bytes, stream, reach)) return std::nullopt;
  ++counts_.view_hits;
  return found;
}

// Bytes of other streams whose last use is over.
std::optional<Place> Dynamic::allocate_complete(std::uint64_t bytes, StreamOrdinal stream) {
  std::array<Range, kForeignRangesAsked> candidates;
  const std::size_t count = placement_.candidates(bytes, candidates);
  for (std::size_t i = 0; i < count; ++i) {
    const PhysicalRange range{candidates[i].begin, candidates[i].begin + bytes};
    if (!order_.is_complete({&range, 1})) continue;
    const Place place{0, range.begin};
    return take(place, bytes, stream, Reach::All) ? std::optional(place) : std::nullopt;
  }
  return std::nullopt;
}

std::optional<Place> Dynamic::allocate_spared(std::uint64_t bytes, StreamOrdinal stream) {
  if (bytes > page_ || spared_pages_[stream] >= options_.policy.spared_pages) return std::nullopt;
  const auto place = make(bytes, stream, Reach::Own, true);
  if (place) ++spared_pages_[stream];
  return place;
}

// Bytes of any stream, behind events. For all streams at once (kNoStream): only if they are complete.
std::optional<Place> Dynamic::allocate_ordered(std::uint64_t bytes, StreamOrdinal stream) {
  const auto place = allocate_free(bytes, stream, Reach::All);
  return place ? place : make(bytes, stream, Reach::All, true);
}

bool Dynamic::take(Place place, std::uint64_t bytes, StreamOrdinal stream, Reach reach) {
  const PhysicalRanges wanted = ranges(place, bytes);
  if (!order_.make_ready(wanted, stream)) return false;
  if (reach == Reach::All && order_.is_foreign(wanted, stream)) ++counts_.borrows;
  placement_.take(wanted, stream, reach);
  if (place.view != 0) {
    ViewCache::View& view = placement_.views()[place.view];
    ++view.live;
    view.used_at = ++clock_;
  }
  return true;
}

void Dynamic::used_again(std::uint32_t view) {
  ++counts_.view_hits;
  placement_.views()[view].used_at = ++clock_;
}

bool Dynamic::take_exactly(PhysicalRanges wanted, StreamOrdinal stream) {
  for (const PhysicalRange& range : wanted) {
    if (!placement_.is_free({range.begin, range.end})) return false;
  }
  if (!order_.make_ready(wanted, stream)) return false;
  placement_.take(wanted, stream, Reach::All);
  return true;
}

void Dynamic::free(PhysicalRanges freed, std::uint32_t view, StreamOrdinal stream) {
  placement_.give(freed, stream);
  if (view == 0) return;
  ViewCache::View& left = placement_.views()[view];
  --left.live;
  if (stream != kNoStream) left.freed_at = order_.latest_number();
}

// Makes room out of free handles and, where they are not enough, new ones.
std::optional<Place> Dynamic::make(std::uint64_t bytes, StreamOrdinal stream, Reach reach, bool may_grow) {
  const bool may_stitch = may_stitch_ && placement_.is_stitchable(bytes) && may_add_view(bytes);
  if (!may_grow && !may_stitch) return std::nullopt;
  const auto proposal = placement_.propose(bytes, stream, reach, may_grow, may_stitch && reach != Reach::None);
  if (!proposal || !can_be_ready(*proposal, stream) || !grow(*proposal, stream)) return std::nullopt;
  std::optional<Place> place;
  if (proposal->pieces.empty()) {
    place = Place{0, proposal->offset};
  } else {
    place = stitch(*proposal);
  }
  if (!place) {
    shrink(*proposal);
    return std::nullopt;
  }
  if (!take(*place, bytes, stream, reach)) {
    if (place->view != 0) unstitch(*proposal, place->view);
    shrink(*proposal);
    return std::nullopt;
  }
  if (!proposal->grow.empty()) ++counts_.grows;
  return place;
}

// What is used at once on any stream takes no bytes on which work is pending: nothing is created for such a place.
bool Dynamic::can_be_ready(const HandlePlacement::Proposal& proposal, StreamOrdinal stream) {
  if (stream != kNoStream || proposal.grow.empty()) return true;
  if (proposal.pieces.empty()) {
    const PhysicalRange before{proposal.offset, proposal.grow_at};
    return order_.is_complete({&before, 1});
  }
  return order_.is_complete(std::span(proposal.pieces).first(proposal.pieces.size() - 1));
}

// Keeps the cache within its limits and its addresses: the least recently used views make room if nothing uses them any
// more.
bool Dynamic::may_add_view(std::uint64_t bytes) {
  const auto has_room = [&] {
    return placement_.views().count() < options_.policy.kept_views &&
           view_addresses_.largest() >= options_.policy.view_room * bytes;
  };
  for (std::size_t i = 0; i < kViewsAskedAtOnce && !has_room(); ++i) {
    const std::uint32_t oldest = placement_.views().least_recent();
    if (oldest == 0) return false;
    if (is_idle(oldest)) {
      drop_view(oldest);
    } else {
      placement_.views()[oldest].used_at = ++clock_;  // asked again when the others have been
    }
  }
  return has_room();
}

}  // namespace stalloc::serve
