// The dynamic sub-allocator of one device: serves what no plan covers. DESIGN: docs/design.md, "Serving", "Dynamic".
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "interpose/serve/driver.h"
#include "interpose/serve/heap_options.h"
#include "interpose/serve/mapper.h"
#include "interpose/serve/stream_order.h"
#include "plan/online/growth.h"
#include "plan/online/handle_placement.h"

namespace stalloc::serve {

using plan::FreeSpace;
using plan::HandlePlacement;
using plan::Place;
using plan::Range;
using plan::ViewCache;

class Arena;

// Finds places (plan/online), creates and maps what they need (mapper.h), orders streams (stream_order.h). Physical
// bytes are named by their place on the heap's line: [0, planned_bytes) belongs to the plan's arena, what lies behind
// to this class. Not thread-safe: the heap's lock covers it, but for `contains`. Throws std::bad_alloc.
class Dynamic {
 public:
  struct Counts {
    std::uint64_t stitches = 0;   // views made or lengthened
    std::uint64_t view_hits = 0;  // requests served in a view made before
    std::uint64_t grows = 0;      // requests that memory was created for
    std::uint64_t borrows = 0;    // requests served from another stream's bytes
  };

  // `order` must outlive it and know the whole line. Nothing on failure, and `why` says in one line what was refused.
  static std::unique_ptr<Dynamic> create(Driver& driver, int device, const HeapOptions& options,
                                         std::uint64_t line_begin, std::uint64_t page, StreamOrder* order,
                                         std::string* why);
  // As `close`.
  ~Dynamic();
  Dynamic(const Dynamic&) = delete;
  Dynamic& operator=(const Dynamic&) = delete;

  // Unmaps and gives back all of it. Idempotent; nothing but `contains`, `counts` and the figures may be asked
  // afterwards. Pre: no work is pending that may touch it.
  void close() noexcept;

  // The part of the line that a device with `device_bytes` of memory needs, in bytes.
  static std::uint64_t line_bytes(std::uint64_t device_bytes, std::uint64_t page);

  // Takes `bytes` (a multiple of plan::kUnitBytes) that work on `stream` may use from now on; kNoStream: that any
  // stream may use at once. Nothing when the driver gives no more memory, with no byte taken. `last_resort`: wait for
  // other streams where the options would rather grow.
  std::optional<Place> allocate(std::uint64_t bytes, StreamOrdinal stream, bool last_resort);
  // Takes just these ranges if they are free and `stream` may use them.
  bool take_exactly(PhysicalRanges wanted, StreamOrdinal stream);
  // A place that was taken before, and not given back since, serves another request.
  void taken_again(std::uint32_t view) {
    ++requests_;
    if (view != 0) used_again(view);
  }
  // Gives back the ranges of a place in the view. The order between streams must know of the free already.
  void free(PhysicalRanges freed, std::uint32_t view, StreamOrdinal stream);

  [[nodiscard]] bool contains(CUdeviceptr address) const noexcept { return mapper_->contains(address); }
  // True for a place on bytes of the plan that it was given.
  [[nodiscard]] bool is_of_plan(Place place) const noexcept { return place.view == 0 && place.offset < line_begin_; }
  [[nodiscard]] CUdeviceptr address(Place place) const {
    return place.view == 0 ? home_address(place.offset) : address(placement_.views()[place.view]) + place.offset;
  }
  // The place that `address` returned for the view (0: home) was.
  [[nodiscard]] Place place(CUdeviceptr address, std::uint32_t view) const;
  // Valid until the next call.
  PhysicalRanges ranges(Place place, std::uint64_t bytes) {
    if (place.view != 0) return ranges_of_view(place, bytes);
    at_home_ = {place.offset, place.offset + bytes};
    return {&at_home_, 1};
  }

  // Unmaps the views, and ends of views, that nothing lives in and no pending work may touch. Never waits.
  void drop_idle_views();
  // Releases handles that are wholly free, whose frees are complete, and that no view maps, until `keep` bytes are
  // held; those of the plan only if asked to. Returns the bytes released. Never waits.
  std::uint64_t release_idle(std::uint64_t keep, bool of_plan);
  // The same for just the handles that these ranges lie in, those of the plan excepted, and the view (0: none) that
  // showed them.
  std::uint64_t release_handles(PhysicalRanges freed, std::uint32_t view);

  // Gives memory back to the driver for a request of `bytes`, no more than it needs: idle handles that no view maps,
  // then idle views and their handles. Returns the bytes released. Never waits.
  std::uint64_t reclaim(std::uint64_t bytes, bool of_plan);

  // The plan's memory serves dynamic requests from now on. Its free bytes come by `give`.
  void adopt(Arena* arena);
  void give(PhysicalRanges ranges, StreamOrdinal stream) { placement_.give(ranges, stream); }

  CUresult grant_access(int peer) noexcept;

  // No more than `bytes` are created from now on, in sum with what is held.
  void set_limit(std::uint64_t bytes) noexcept { limit_ = bytes; }

  // The handles at home, by place on the line: the plan's too once they were adopted.
  [[nodiscard]] const HandlePlacement::Handles& handles() const noexcept { return placement_.handles(); }
  // The home address of a byte of the line. Pre: it is not the plan's, or those were adopted.
  [[nodiscard]] CUdeviceptr home(std::uint64_t at) const { return home_address(at); }

  [[nodiscard]] const Counts& counts() const noexcept { return counts_; }
  [[nodiscard]] std::uint64_t physical_bytes() const noexcept { return created_bytes_; }
  [[nodiscard]] std::uint64_t free_bytes() const noexcept { return placement_.free_bytes(); }
  [[nodiscard]] std::uint64_t free_plan_bytes() const noexcept { return placement_.free_plan_bytes(); }
  [[nodiscard]] std::uint64_t largest_free() const noexcept { return placement_.largest_free(); }
  [[nodiscard]] std::size_t views() const noexcept { return placement_.views().count(); }
  [[nodiscard]] const Mapper& mapper() const noexcept { return *mapper_; }

 private:
  using Reach = HandlePlacement::Reach;

  Dynamic(Driver& driver, const HeapOptions& options, const HandlePlacement::Options& placement,
          std::unique_ptr<Mapper> mapper, StreamOrder* order);

  void unmap_all();
  void used_again(std::uint32_t view);
  std::optional<Place> allocate_free(std::uint64_t bytes, StreamOrdinal stream, Reach reach);
  std::optional<Place> allocate_complete(std::uint64_t bytes, StreamOrdinal stream);
  std::optional<Place> allocate_spared(std::uint64_t bytes, StreamOrdinal stream);
  std::optional<Place> allocate_ordered(std::uint64_t bytes, StreamOrdinal stream);
  std::optional<Place> make(std::uint64_t bytes, StreamOrdinal stream, Reach reach, bool may_grow);
  bool can_be_ready(const HandlePlacement::Proposal& proposal, StreamOrdinal stream);
  bool take(Place place, std::uint64_t bytes, StreamOrdinal stream, Reach reach);
  PhysicalRanges ranges_of_view(Place place, std::uint64_t bytes);
  bool may_add_view(std::uint64_t bytes);
  bool device_has(std::uint64_t bytes);
  bool grow(const HandlePlacement::Proposal& proposal, StreamOrdinal stream);
  void shrink(const HandlePlacement::Proposal& proposal);
  std::optional<Place> stitch(const HandlePlacement::Proposal& proposal);
  std::optional<std::uint32_t> make_view(const HandlePlacement::Proposal& proposal);
  std::optional<std::uint32_t> lengthen_view(const HandlePlacement::Proposal& proposal);
  void unstitch(const HandlePlacement::Proposal& proposal, std::uint32_t number);
  void handles_of(std::span<const Range> pieces, std::vector<MappedHandle>* out) const;
  void forget_view(std::uint32_t number);
  bool drop_view(std::uint32_t number);
  bool shorten_view(std::uint32_t number, std::size_t pieces);
  void shorten_idle(std::uint32_t number);
  bool is_idle(std::uint32_t number);
  [[nodiscard]] FreeSpace shown_in_views() const;
  bool can_be_released(std::uint64_t at, const HandlePlacement::Handle& handle, const FreeSpace& shown);
  std::uint64_t release(std::uint64_t at);
  CUdeviceptr home_address(std::uint64_t at) const {
    return at < line_begin_ ? planned_address(at) : mapper_->home(at - line_begin_);
  }
  CUdeviceptr planned_address(std::uint64_t at) const;
  CUdeviceptr address(const ViewCache::View& view) const {
    return view.lent.bytes() > 0 ? home_address(view.lent.begin) : mapper_->view(view.at);
  }

  Driver& driver_;
  const std::uint64_t page_;
  HeapOptions options_;
  HandlePlacement placement_;
  std::unique_ptr<Mapper> mapper_;
  StreamOrder& order_;
  Arena* arena_ = nullptr;  // adopted
  std::uint64_t line_begin_ = 0;
  std::uint64_t created_bytes_ = 0;
  std::uint64_t limit_ = ~std::uint64_t{0};
  FreeSpace view_addresses_;
  PhysicalRange at_home_;               // what `ranges` returned
  std::vector<PhysicalRange> in_view_;  // the same
  std::vector<MappedHandle> handles_;
  std::array<std::uint32_t, kMaxStreams + 1> spared_pages_{};  // by stream: grown for, instead of waiting
  plan::GrowthPace pace_;
  bool may_stitch_ = true;  // the present request
  bool closed_ = false;
  std::uint64_t requests_ = 0;
  std::uint64_t clock_ = 0;
  Counts counts_;
};

}  // namespace stalloc::serve
