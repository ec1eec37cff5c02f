// SPDX-License-Identifier: Apache-2.0
// Serves requests as they come, when the future is unknown: the run-time policy, implemented once.
//
// The preloaded library runs it over a device's memory (interpose/serve/dynamic/device_backend.h), simulations over
// nothing (plan/simulate/null_backend.h). Both do the same things in the same order, so a simulation shows what a
// program would hold. DESIGN: docs/design.md, "Dynamic: stitch before you grow"; numbers: docs/policy.md.
//
// How a request is served
// -----------------------
//
// A request tries these steps in this order, and the first one that succeeds serves it. "Own" bytes are free bytes last
// freed by, or created for, the request's stream. The placement (handle_placement.h) finds places and proposes new
// views and handles; this class carries the proposals out.
//
//   1. The deferred free. The block that was freed last is kept aside for a moment. A request of its size on its stream
//      gets it back as it was, because programs make a tensor and drop it again and again. Any other use of the
//      placement completes that free first.
//   2. Own bytes that are mapped: a contiguous free range of the home view, else a free stretch of a stitched view that
//      was made before.
//   3. Bytes of other streams whose last use is known to be complete. Using them costs nothing.
//   4. A stitched view over own bytes, new, lengthened or repaired, without creating memory.
//   5. Bytes of any stream, behind a wait on the device for the streams that freed them, if the backend can make the
//      request's stream wait for these frees: mapped ones as in step 2, else a stitched view, with new memory for what
//      is missing. If the stream would have to wait for a stream that the program itself is about to order it behind,
//      the request prefers a place at home that fits nearly as well and needs no such wait.
//   6. New memory for the bytes that own bytes lack: after the last handle at home, or at the end of a stitched view.
//   7. New memory alone, when own bytes could not be made ready.
//
// Steps 3 and 5 apply when another stream than the request's has free bytes. `CrossStream` changes what a request does
// about those. With Share, the default, a request that is not small treats the bytes of all streams as its own at
// first: it tries step 5 right after step 1. OrderThenGrow is the order above. GrowThenOrder tries step 5 after step 6.
// Never omits step 5.
//
// A request for any stream at once (`kAnyStream`, cudaMalloc) cannot be made to wait: it gets only bytes whose frees
// are complete. As a last resort, when the device is out of memory, a request waits before it grows, and stitches in
// any case; a request for any stream at once also searches the free bytes of all streams; and a small request, which
// otherwise uses only its own kind of handles and no view, takes a hole among large ones.
//
// The time for mapping is measured and limited to a share of the program's time (mapping_budget.h). While it exceeds
// this share, new memory comes in larger handles, so that growing, stitching and giving back all take fewer calls.
// While stitching alone exceeds it, a request that would be stitched of many small handles exchanges such handles for
// large ones before step 3; and as long as little memory is free, the later steps do not stitch where they can grow.
// The limit for "little" grows with the time that is owed.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "plan/cross_stream.h"
#include "plan/online/handle_placement.h"
#include "plan/online/mapping_budget.h"
#include "plan/online/online_policy.h"

namespace stalloc::plan {

// In a request: any stream may use the bytes at once. In a free: the device has finished with the bytes. The streams of
// a program have other, small numbers.
inline constexpr StreamIndex kAnyStream = 0;

// An address that a backend reserved: in the home view, where each handle is mapped once, or in the range
// for stitched views. `offset` counts bytes from the beginning of either.
struct VirtualAddress {
  enum class Space : std::uint8_t { Home, Views };
  Space space = Space::Home;
  std::uint64_t offset = 0;
};

// What the allocator is built on: physical memory, mappings, and the order between streams. A backend that refuses a
// call has changed nothing, except for `unmap`: its addresses are then not used again. Ranges are of physical offsets,
// their ends multiples of kUnitBytes. No function throws; none waits on the host.
template <class B>
concept OnlineBackend = requires(B& backend, std::uint64_t at, bool serves_large, std::uint64_t free_number,
                                 VirtualAddress address, const typename B::Handle& handle,
                                 std::span<typename B::Handle> new_handles, std::span<const typename B::Handle> handles,
                                 const typename B::Block& block, std::span<const Range> ranges, StreamIndex stream) {
  // A piece of physical memory: how many bytes it has, and its name in the backend.
  requires std::is_aggregate_v<typename B::Handle>;
  { handle.bytes } -> std::convertible_to<std::uint64_t>;
  { handle.id } -> std::convertible_to<std::uint64_t>;
  // A block that was served, as the backend's user knows it, and the view that it lies in.
  { block.view } -> std::convertible_to<std::uint32_t>;

  // Creates physical memory for each of the handles (`bytes` is given, `id` is set) and maps them one after another in
  // the home view from `at` on. Nothing is pending on their bytes.
  { backend.create(at, new_handles) }
  noexcept->std::same_as<bool>;
  // How many bytes `create` can still create. Called before memory grows, and sometimes when it does not grow.
  { std::as_const(backend).room() }
  noexcept->std::same_as<std::uint64_t>;
  // Unmaps a handle from its place in the home view and gives its memory back. Pre: no work is pending on its bytes.
  { backend.destroy(at, handle) }
  noexcept->std::same_as<bool>;
  // Maps existing handles one after another from `address` on.
  { backend.map(address, handles) }
  noexcept->std::same_as<bool>;
  // Undoes `map`. False: something is still mapped there. Pre: no work is pending that uses these addresses.
  { backend.unmap(address, handles) }
  noexcept->std::same_as<bool>;
  // Orders the use of free bytes on `stream` behind every free of them; for kAnyStream, true only when all those frees
  // are complete. False: the bytes may still be in use.
  { backend.make_ready(ranges, stream) }
  noexcept->std::same_as<bool>;
  // The same, but false where the stream would have to wait for another one that the program itself will probably order
  // it behind a little later. Pre: the stream is not kAnyStream.
  { backend.make_ready_unless_soon(ranges, stream) }
  noexcept->std::same_as<bool>;
  // True only when the device is known to have finished with the bytes.
  { backend.is_complete(ranges) }
  noexcept->std::same_as<bool>;
  // True when a stream other than this one freed some of the bytes last. The answer is only counted.
  { backend.is_foreign(ranges, stream) }
  noexcept->std::same_as<bool>;
  // Whether several streams use memory. If not, no stream ever waits for a free.
  { std::as_const(backend).is_shared() }
  noexcept->std::same_as<bool>;
  // Returns a number for a free on `stream`, which is not kAnyStream. Called when the program frees the bytes, so that
  // a stream that waits for the free need not wait for later work of `stream`. `serves_large`: large requests may get
  // the bytes. These requests are stitched from many free ranges, and their stream must be able to wait for all those
  // frees.
  { backend.number_free(stream, serves_large) }
  noexcept->std::same_as<std::uint64_t>;
  // The bytes were freed on `stream` by the free of that number; kAnyStream: the device has finished with them.
  { backend.freed(ranges, stream, free_number) }
  noexcept;
  // The number of the latest free. Numbers never go down.
  { backend.latest_free() }
  noexcept->std::same_as<std::uint64_t>;
  // Finds out which frees are complete. It is called often and asks the device few questions, so some complete frees
  // may become known only at the next call.
  { backend.look() }
  noexcept;
  // True only when every free up to that number is already known to be complete. Does not ask the device.
  { std::as_const(backend).is_known_complete_up_to(free_number) }
  noexcept->std::same_as<bool>;
  // True only when every free up to that number is complete.
  { backend.is_complete_up_to(free_number) }
  noexcept->std::same_as<bool>;
  // The time that all calls of `create`, `destroy`, `map` and `unmap` have taken, and the time that has passed. The
  // allocator itself measures the part of it that is for stitching.
  { std::as_const(backend).mapping_time() }
  noexcept->std::same_as<MappingTime>;
  // Where a block lies; `address` is the beginning of its view, if that is a stitched one.
  { std::as_const(backend).place(block, address) }
  noexcept->std::same_as<Place>;
};

// All sizes are in bytes and multiples of kUnitBytes; a request has at least one unit. Not thread-safe: in the library
// the heap's lock covers it. Functions throw only for want of host memory (std::bad_alloc); free bytes may then be
// forgotten, never handed out twice.
template <OnlineBackend Backend>
class alignas(64) OnlineAllocator {  // the members that nearly every request touches lie in one cache line
 public:
  using Handle = typename Backend::Handle;
  using Block = typename Backend::Block;
  using Ranges = std::span<const Range>;

  struct Options {
    HandlePlacement::Options placement;
    CrossStream cross_stream = kDefaultCrossStream;
    std::uint64_t view_bytes = 0;  // addresses that the backend has for stitched views
  };

  struct Counts {
    std::uint64_t view_hits = 0;   // requests served in a view made before
    std::uint64_t views = 0;       // stitched views made
    std::uint64_t lengthened = 0;  // times that a view was lengthened
    std::uint64_t repaired = 0;    // times that handles of an idle view were exchanged for others
    std::uint64_t mapped = 0;      // handles mapped for any of these
    std::uint64_t handles = 0;     // created
    std::uint64_t grows = 0;       // requests for which new memory was created
    std::uint64_t borrows = 0;     // requests served from bytes that another stream freed
  };

  explicit OnlineAllocator(const Options& options, Backend backend = {})
      : most_deferred_bytes_(options.placement.policy.deferred_free_bytes),
        backend_(std::move(backend)),
        placement_(options.placement),
        cross_stream_(options.cross_stream),
        budget_(options.placement.policy) {
    view_addresses_.add({0, options.view_bytes});
  }

  // --- Requests ---

  // Takes `bytes` that work on `stream` may use from now on. Returns nothing, and takes nothing, when there is no place
  // and the backend creates no more memory. `last_resort`: the device is out of memory. Throws std::bad_alloc.
  std::optional<Place> allocate(std::uint64_t bytes, StreamIndex stream, bool last_resort = false);
  // The same without creating or mapping anything: nothing is returned where `allocate` would have to.
  std::optional<Place> allocate_mapped(std::uint64_t bytes, StreamIndex stream);
  // Takes exactly these ranges, which a plan chose, if they are free and `stream` may use them.
  bool take_exactly(Ranges wanted, StreamIndex stream);

  // Gives back a block of `bytes`. The work of `stream` up to now may still use it; kAnyStream: the device has finished
  // with it. For requests of the stream `preferred`, the bytes count as their own. Throws std::bad_alloc; the block is
  // then never used again.
  void free(Block block, std::uint64_t bytes, StreamIndex stream, StreamIndex preferred) {
    free_numbered(block, bytes, stream, stream == kAnyStream ? 0 : number_free(block, bytes, stream), preferred);
  }
  void free(Block block, std::uint64_t bytes, StreamIndex stream) { free(block, bytes, stream, stream); }
  // As `free`, but the free is deferred if the block is no larger than the policy's `deferred_free_bytes`. Simulations
  // defer every free; the library defers those on the stream that was used last (heap.cpp). Completes the free that was
  // deferred before. Pre: `stream` is not kAnyStream, and keeps its number until the free is completed. Throws
  // std::bad_alloc; either block may then never be used again.
  void defer_free(Block block, std::uint64_t bytes, StreamIndex stream) {
    complete_deferred_free();
    if (bytes > most_deferred_bytes_) {
      free(block, bytes, stream);
    } else {
      deferred_.block = block;
      deferred_.bytes = bytes;
      deferred_.stream = stream;
      deferred_.number = number_free(block, bytes, stream);
    }
  }
  // Completes the deferred free, if there is one. Must be called before free bytes or idle memory are examined.
  // Throws std::bad_alloc; the block is then never used again.
  void complete_deferred_free() {
    if (has_deferred_free()) free_deferred();
  }
  [[nodiscard]] bool has_deferred_free() const noexcept { return deferred_.stream != kNotDeferred; }
  // Bytes of the block whose free is deferred; 0: there is none. They are counted as free nowhere else.
  [[nodiscard]] std::uint64_t deferred_bytes() const noexcept { return has_deferred_free() ? deferred_.bytes : 0; }
  // True when the block whose free is deferred serves a request; `reuse_deferred` then takes it.
  [[nodiscard]] bool deferred_serves(std::uint64_t bytes, StreamIndex stream) const noexcept {
    return deferred_.bytes == bytes && deferred_.stream == stream;
  }
  // Pre: `deferred_serves` returned true. The result is valid until the next free.
  const Block& reuse_deferred() noexcept {
    deferred_.stream = kNotDeferred;
    if (deferred_.block.view != 0) ++counts_.view_hits;
    return deferred_.block;
  }

  // --- Places ---

  [[nodiscard]] Place place(Block block) const noexcept {
    return backend_.place(block, block.view == 0 ? VirtualAddress{} : begin_of(placement_.views()[block.view]));
  }
  [[nodiscard]] VirtualAddress address(Place place) const noexcept {
    if (place.view == 0) return {VirtualAddress::Space::Home, place.offset};
    return behind(begin_of(placement_.views()[place.view]), place.offset);
  }
  // The physical ranges that a place shows. Valid until the next call. Throws std::bad_alloc.
  [[nodiscard]] Ranges ranges(Place place, std::uint64_t bytes) {
    if (place.view != 0) return ranges_of_view(place, bytes);
    at_home_ = {place.offset, place.offset + bytes};
    return {&at_home_, 1};
  }

  // --- Stitched views, by number, for callers that give memory back ---

  [[nodiscard]] static VirtualAddress begin_of(const ViewCache::CachedView& view) noexcept {
    const bool at_home = view.lent.bytes() > 0;
    return at_home ? VirtualAddress{VirtualAddress::Space::Home, view.lent.begin}
                   : VirtualAddress{VirtualAddress::Space::Views, view.at};
  }
  // True when nothing lives in the view, and the device is known to have finished with earlier blocks in it. Uses of
  // its bytes at other addresses do not matter. False for a number that no view has.
  [[nodiscard]] bool is_idle(std::uint32_t view) noexcept;
  // Unmaps the view. False: something of it is still mapped. Throws std::bad_alloc. Pre: it is idle, or nothing was
  // placed in it yet.
  bool drop_view(std::uint32_t view);
  // Unmaps the last `pieces` of the view; returns and throws as `drop_view`. Pre: the view has more pieces than that;
  // these pieces are free, and the device has finished with them.
  bool shorten_view(std::uint32_t view, std::size_t pieces);

  // --- Giving memory back, only if no pending work uses it ---

  // Unmaps the views, and ends of views, in which nothing lives and which no pending work may use.
  void drop_idle_views();
  // Releases handles that are wholly free, whose frees are complete, and that no view maps, until `keep` bytes are
  // held; those of the plan only if asked to. Returns the bytes released.
  std::uint64_t release_idle(std::uint64_t keep, bool of_plan);
  // The same for just the handles that these ranges lie in, those of the plan excepted, and the view (0: none) that
  // showed them.
  std::uint64_t release_handles(Ranges freed, std::uint32_t view);
  // Gives memory back for a request of `bytes`, no more than it needs: idle handles that no view maps, then idle views
  // and their handles. Returns the bytes released.
  std::uint64_t reclaim(std::uint64_t bytes, bool of_plan);

  // False while mapping takes more time than it may; then idle memory is given back only when it is needed. (The
  // library asks this when the program synchronises.)
  [[nodiscard]] bool may_give_back_unasked() noexcept {
    return !budget_.overdraft(backend_.mapping_time(), stitching_ns_).keep_idle;
  }

  // A caller that changes the placement must make mappings and handles agree with it.
  [[nodiscard]] HandlePlacement& placement() noexcept { return placement_; }
  [[nodiscard]] const HandlePlacement& placement() const noexcept { return placement_; }
  [[nodiscard]] Backend& backend() noexcept { return backend_; }
  [[nodiscard]] const Backend& backend() const noexcept { return backend_; }
  [[nodiscard]] const Counts& counts() const noexcept { return counts_; }

 private:
  using Handles = HandlePlacement::Handles;
  using Reach = HandlePlacement::Reach;
  using Proposal = HandlePlacement::Proposal;

  struct DeferredFree {
    Block block;
    std::uint64_t bytes = 0;
    StreamIndex stream = kNotDeferred;
    std::uint64_t number = 0;  // of the free
  };

  static constexpr StreamIndex kNotDeferred = ~StreamIndex{0};
  static constexpr std::size_t kForeignRangesAsked = 4;
  static constexpr std::size_t kViewsAskedAtOnce = 4;
  static constexpr std::size_t kFewestRepaired = 2;  // one handle leaves the view, and another enters it

  // True when the request treats the bytes of all streams as its own at first.
  [[nodiscard]] bool shares_bytes(std::uint64_t bytes, StreamIndex stream) const noexcept {
    return cross_stream_ == CrossStream::Share && stream != kAnyStream && !placement_.is_small(bytes);
  }

  // The steps of a request.
  std::optional<Place> take_mapped(std::uint64_t bytes, StreamIndex stream, Reach reach);
  std::optional<Place> take_unless_soon(Place best, std::uint64_t bytes, StreamIndex stream);
  std::optional<Place> exchange(std::uint64_t bytes, StreamIndex stream);
  std::optional<Place> take_of_any_stream(std::uint64_t bytes, StreamIndex stream, bool last_resort);
  std::optional<Place> take_ordered(std::uint64_t bytes, StreamIndex stream);
  std::optional<Place> make(std::uint64_t bytes, StreamIndex stream, Reach reach, bool may_grow);

  [[nodiscard]] std::uint64_t coarseness_of_returns() const noexcept;
  void release_idle_small(std::uint64_t grown);

  // Taking a place that was found or made, and giving it back.
  bool take(Place place, std::uint64_t bytes, StreamIndex stream, Reach reach);
  void take_ready(Place place, std::uint64_t bytes, Ranges wanted, StreamIndex stream, Reach reach);
  bool make_ready(const Proposal& proposal, std::uint64_t bytes, StreamIndex stream);
  std::uint64_t number_free(Block block, std::uint64_t bytes, StreamIndex stream) noexcept {
    if (!backend_.is_shared() || cross_stream_ == CrossStream::Never) return backend_.number_free(stream, false);
    const bool apart = placement_.is_small(bytes) && placement_.is_for_small(place(block).offset);
    return backend_.number_free(stream, !apart);
  }
  void free_deferred() {
    const StreamIndex stream = std::exchange(deferred_.stream, kNotDeferred);
    free_numbered(deferred_.block, deferred_.bytes, stream, deferred_.number, stream);
  }
  void free_numbered(Block block, std::uint64_t bytes, StreamIndex stream, std::uint64_t number, StreamIndex preferred);

  // Repairing an idle view, if no more than `most` handles leave it or come into it.
  std::optional<HandlePlacement::Repair> propose_repair(std::uint64_t bytes, StreamIndex stream, Reach reach,
                                                        std::size_t most);
  std::optional<Place> carry_out(const HandlePlacement::Repair& repair);

  // Carrying out a proposal, and undoing it.
  bool grow(const Proposal& proposal, StreamIndex stream);
  void shrink(const Proposal& proposal);
  std::optional<Place> stitch(const Proposal& proposal);
  std::optional<std::uint32_t> make_view(const Proposal& proposal);
  std::optional<std::uint32_t> lengthen_view(const Proposal& proposal);
  void unstitch(const Proposal& proposal, std::uint32_t view);

  // Views.
  bool has_room_for_view(std::uint64_t bytes);
  void forget_view(std::uint32_t view);
  void give_up(std::uint32_t view, bool is_unmapped);
  void shorten_idle(std::uint32_t view);
  [[nodiscard]] FreeSpace shown_in_views() const;

  // Handles.
  std::uint64_t release_unused(std::uint64_t keep, bool of_plan);
  bool can_be_released(const Handles::value_type& handle, const FreeSpace& shown);
  bool release_small(std::uint64_t bytes, std::uint64_t largest);
  std::uint64_t release(std::uint64_t at);
  static bool meets(const FreeSpace& space, Range range) {
    const auto next = space.at_or_after(range.begin);
    return next && next->begin < range.end;
  }
  const std::vector<Handle>& handles_of(Ranges pieces);
  Ranges ranges_of_view(Place place, std::uint64_t bytes);
  static VirtualAddress behind(VirtualAddress begin, std::uint64_t bytes) noexcept {
    return {begin.space, begin.offset + bytes};
  }

  // These lie in the first cache line.
  DeferredFree deferred_;
  const std::uint64_t most_deferred_bytes_;
  Counts counts_;

  Backend backend_;
  HandlePlacement placement_;
  const CrossStream cross_stream_;
  MappingBudget budget_;
  std::uint64_t stitching_ns_ = 0;  // spent in mapping views, and in unmapping those that make room for others
  std::uint64_t given_back_ = 0;    // bytes, in all
  FreeSpace view_addresses_;
  Range at_home_;               // what `ranges` returned last, of a place at home
  std::vector<Range> in_view_;  // the same, of a place in a stitched view
  std::vector<Handle> handles_;
};

template <OnlineBackend Backend>
std::optional<Place> OnlineAllocator<Backend>::allocate(std::uint64_t bytes, StreamIndex stream, bool last_resort) {
  std::optional<Place> place = allocate_mapped(bytes, stream);
  if (place) return place;

  const bool is_ordered = stream != kAnyStream;
  const bool shares = shares_bytes(bytes, stream);
  Overdraft overdraft;
  if (!last_resort) {
    overdraft = budget_.overdraft(backend_.mapping_time(), stitching_ns_);
    overdraft.coarseness = std::max(overdraft.coarseness, coarseness_of_returns());
  }
  placement_.set_overdraft(overdraft);
  if (overdraft.held_per_slack > 0) place = exchange(bytes, stream);
  if (!place && shares) place = make(bytes, stream, Reach::All, true);
  const bool several = placement_.others_have_bytes(stream);
  if (!place && several) place = take_of_any_stream(bytes, stream, false);
  if (!place) place = make(bytes, stream, Reach::Own, false);

  const bool may_wait = several && is_ordered && cross_stream_ != CrossStream::Never;
  const bool prefers_growing = cross_stream_ == CrossStream::GrowThenOrder && !last_resort;
  if (!place && may_wait && !prefers_growing && !shares) place = take_ordered(bytes, stream);
  if (!place) place = make(bytes, stream, Reach::Own, true);
  if (!place && may_wait && prefers_growing) place = take_ordered(bytes, stream);
  if (!place && several && !is_ordered && last_resort) place = take_ordered(bytes, stream);
  placement_.set_overdraft({});
  if (!place) place = make(bytes, stream, Reach::Own, false);
  if (!place) place = make(bytes, stream, Reach::None, true);
  if (!place && last_resort) place = take_of_any_stream(bytes, stream, true);
  return place;
}

template <OnlineBackend Backend>
std::optional<Place> OnlineAllocator<Backend>::allocate_mapped(std::uint64_t bytes, StreamIndex stream) {
  if (deferred_serves(bytes, stream)) return place(reuse_deferred());
  complete_deferred_free();
  return take_mapped(bytes, stream, shares_bytes(bytes, stream) ? Reach::All : Reach::Own);
}

// Takes free bytes that are mapped: at home, else in a view made before.
template <OnlineBackend Backend>
std::optional<Place> OnlineAllocator<Backend>::take_mapped(std::uint64_t bytes, StreamIndex stream, Reach reach) {
  const auto home = placement_.find_home(bytes, stream, reach);
  const bool chooses = reach == Reach::All && stream != kAnyStream && placement_.others_have_bytes(stream);
  if (home && chooses) {
    if (const auto ready = take_unless_soon(*home, bytes, stream)) return ready;
  }
  if (home && take(*home, bytes, stream, reach)) return home;
  const auto found = placement_.find_in_views(bytes, stream, reach);
  if (!found || !take(*found, bytes, stream, reach)) return std::nullopt;
  ++counts_.view_hits;
  return found;
}

// Takes the best place at home. If the stream would have to wait there for a stream that the program itself is about to
// order it behind, takes a place that fits nearly as well and needs no such wait, if there is one.
template <OnlineBackend Backend>
std::optional<Place> OnlineAllocator<Backend>::take_unless_soon(Place best, std::uint64_t bytes, StreamIndex stream) {
  const auto take_at = [&](std::uint64_t begin) -> std::optional<Place> {
    const Place place{0, begin};
    const Ranges wanted = ranges(place, bytes);
    if (!backend_.make_ready_unless_soon(wanted, stream)) return std::nullopt;
    take_ready(place, bytes, wanted, stream, Reach::All);
    return place;
  };
  if (const auto place = take_at(best.offset)) return place;
  std::array<Range, HandlePlacement::kMostCompared> fits;
  const std::size_t count = placement_.candidates(bytes, std::span(fits).first(placement_.compared_fits()));
  for (const Range& fit : std::span(fits).first(count)) {
    if (placement_.is_of_plan(fit.begin)) break;  // its slots will be wanted, and these ranges are the last
    for (const std::uint64_t begin : {fit.begin, fit.end - bytes}) {
      if (const auto place = take_at(begin)) return place;
    }
  }
  return std::nullopt;
}

// Serves a request that would be stitched of many small handles from few large ones, which are newly created. First as
// many bytes in small handles are given back, if no pending work uses them. The same bytes are exchanged only a few
// times, since their handles become larger by a factor each time.
template <OnlineBackend Backend>
std::optional<Place> OnlineAllocator<Backend>::exchange(std::uint64_t bytes, StreamIndex stream) {
  if (placement_.free_bytes() < bytes) return std::nullopt;
  const auto proposal = placement_.propose(bytes, stream, Reach::All, false, true);
  if (!proposal) return std::nullopt;
  placement_.set_room(backend_.room());
  const std::vector<std::uint64_t> larger = placement_.new_handles(bytes, bytes);
  const std::uint64_t times = placement_.policy().handles_per_exchanged;
  if (handles_of(proposal->pieces).size() / larger.size() < times) return std::nullopt;
  backend_.look();
  return release_small(bytes, larger.front() / times) ? make(bytes, stream, Reach::None, true) : std::nullopt;
}

// Gives back idle handles of at most `largest` bytes each until they hold `bytes` together, and the idle views that
// show them. False when there are too few, in which case nothing is given back, or when the backend refuses.
template <OnlineBackend Backend>
bool OnlineAllocator<Backend>::release_small(std::uint64_t bytes, std::uint64_t largest) {
  FreeSpace in_use;  // shown in views in use
  FreeSpace idle;    // shown in others
  for (std::uint32_t view = 1; view <= placement_.views().numbers(); ++view) {
    FreeSpace& shown = is_idle(view) ? idle : in_use;
    for (const Range& piece : placement_.views()[view].stitched.pieces()) shown.add(piece);
  }
  std::vector<Range> chosen;
  std::uint64_t found = 0;
  for (const bool in_view : {false, true}) {
    for (const auto& handle : placement_.handles()) {
      const Range range{handle.first, handle.first + handle.second.bytes};
      if (found >= bytes) break;
      if (range.bytes() > largest || handle.second.planned || meets(idle, range) != in_view) continue;
      if (!can_be_released(handle, in_use)) continue;
      chosen.push_back(range);
      found += range.bytes();
    }
  }
  if (found < bytes) return false;
  FreeSpace given_back;
  for (const Range& range : chosen) given_back.add(range);
  for (std::uint32_t view = 1; view <= placement_.views().numbers(); ++view) {
    const std::vector<Range>& pieces = placement_.views()[view].stitched.pieces();
    const bool shows = std::any_of(pieces.begin(), pieces.end(), [&](Range piece) { return meets(given_back, piece); });
    if (shows && !drop_view(view)) return false;
  }
  std::uint64_t released = 0;
  for (const Range& range : chosen) released += release(range.begin);
  return released >= bytes;
}

// How many times larger new handles are because the program gives its memory back.
template <OnlineBackend Backend>
std::uint64_t OnlineAllocator<Backend>::coarseness_of_returns() const noexcept {
  const std::uint64_t times = placement_.policy().coarse_returns;
  return given_back_ > 0 && given_back_ >= placement_.most_physical_bytes() / times ? times : 1;
}

// Takes home bytes of any stream whose last use is complete. As a last resort, also takes others behind waits and, for
// a small request, bytes among large ones.
template <OnlineBackend Backend>
std::optional<Place> OnlineAllocator<Backend>::take_of_any_stream(std::uint64_t bytes, StreamIndex stream,
                                                                  bool last_resort) {
  std::array<Range, kForeignRangesAsked> candidates;
  const std::size_t count = placement_.candidates(bytes, candidates, last_resort);
  const bool may_wait = last_resort && cross_stream_ != CrossStream::Never;
  for (std::size_t i = 0; i < count; ++i) {
    const Range range{candidates[i].begin, candidates[i].begin + bytes};
    if (!may_wait && !backend_.is_complete({&range, 1})) continue;
    const Place place{0, range.begin};
    if (take(place, bytes, stream, Reach::All)) return place;
  }
  return std::nullopt;
}

// Takes bytes of any stream, behind waits for those that freed them; for any stream at once, only bytes whose frees are
// complete.
template <OnlineBackend Backend>
std::optional<Place> OnlineAllocator<Backend>::take_ordered(std::uint64_t bytes, StreamIndex stream) {
  const auto place = take_mapped(bytes, stream, Reach::All);
  return place ? place : make(bytes, stream, Reach::All, true);
}

// Makes room out of free handles and, where they are not enough and it may grow, new ones.
template <OnlineBackend Backend>
std::optional<Place> OnlineAllocator<Backend>::make(std::uint64_t bytes, StreamIndex stream, Reach reach,
                                                    bool may_grow) {
  const bool may_stitch = placement_.is_stitchable(bytes) && has_room_for_view(bytes);
  if (!may_grow && !may_stitch) return std::nullopt;
  if (may_grow && placement_.depends_on_room(bytes)) placement_.set_room(backend_.room());
  auto proposal = placement_.propose(bytes, stream, reach, may_grow, may_stitch && reach != Reach::None);
  if (proposal && !proposal->pieces.empty() && proposal->grow.empty() && stream != kAnyStream) {
    const std::size_t most = handles_of(proposal->mapped()).size() / placement_.policy().handles_per_repaired;
    const auto repair = propose_repair(bytes, stream, reach, most);
    if (repair) {
      const auto repaired = carry_out(*repair);
      if (repaired && take(*repaired, bytes, stream, reach)) return repaired;
      proposal = placement_.propose(bytes, stream, reach, may_grow, may_stitch);  // views are not what they were
    }
  }
  if (!proposal || !make_ready(*proposal, bytes, stream) || !grow(*proposal, stream)) return std::nullopt;
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

template <OnlineBackend Backend>
std::optional<HandlePlacement::Repair> OnlineAllocator<Backend>::propose_repair(std::uint64_t bytes, StreamIndex stream,
                                                                                Reach reach, std::size_t most) {
  if (most < kFewestRepaired) return std::nullopt;
  backend_.look();
  return placement_.propose_repair(bytes, stream, reach, most, [this](std::uint32_t view) {
    return backend_.is_known_complete_up_to(placement_.views()[view].freed_at);
  });
}

// Unmaps the exchanged parts, and maps their replacements. If a part cannot be exchanged, the view is removed. Pre: the
// view is idle.
template <OnlineBackend Backend>
std::optional<Place> OnlineAllocator<Backend>::carry_out(const HandlePlacement::Repair& repair) {
  struct Part {
    VirtualAddress at;
    std::vector<Handle> shown;
    std::vector<Handle> instead;
    bool is_mapped = true;
  };
  ViewCache::CachedView& view = placement_.views()[repair.view];
  std::vector<Part> parts;  // everything that may throw is done first
  for (const auto& part : repair.parts) {
    std::vector<Handle> shown = handles_of(part.shown);
    parts.push_back({behind(begin_of(view), part.at), std::move(shown), handles_of(part.instead)});
  }
  StitchedView repaired(placement_.pieces_after(repair));

  const std::uint64_t before = backend_.mapping_time().mapping;
  bool unmapped = true;
  for (Part& part : parts) {
    if (part.instead.empty()) continue;
    unmapped = backend_.unmap(part.at, part.shown) && unmapped;
    part.is_mapped = false;
  }
  bool mapped = unmapped;
  for (Part& part : parts) {
    if (!mapped || part.is_mapped) continue;
    part.is_mapped = mapped = backend_.map(part.at, part.instead);
    if (mapped) counts_.mapped += part.instead.size();
  }
  if (mapped) {
    view.stitched = std::move(repaired);
    ++counts_.repaired;
  } else {
    for (const Part& part : parts) {
      const std::vector<Handle>& handles = part.instead.empty() ? part.shown : part.instead;
      if (part.is_mapped) unmapped = backend_.unmap(part.at, handles) && unmapped;
    }
    give_up(repair.view, unmapped);
  }
  stitching_ns_ += backend_.mapping_time().mapping - before;
  return mapped ? std::optional(Place{repair.view, repair.offset}) : std::nullopt;
}

// Makes the free bytes of a proposed place ready, before anything is created or mapped for it.
template <OnlineBackend Backend>
bool OnlineAllocator<Backend>::make_ready(const Proposal& proposal, std::uint64_t bytes, StreamIndex stream) {
  in_view_.clear();
  if (proposal.pieces.empty()) {
    if (proposal.offset < proposal.grow_at) in_view_.push_back({proposal.offset, proposal.grow_at});
  } else {
    std::uint64_t at = proposal.view == 0 ? 0 : placement_.views()[proposal.view].bytes();
    if (proposal.offset < at) placement_.translate({proposal.view, proposal.offset}, at - proposal.offset, in_view_);
    const std::size_t created = proposal.grow.empty() ? 0 : 1;  // the last piece
    for (const Range& piece : std::span(proposal.pieces).first(proposal.pieces.size() - created)) {
      const std::uint64_t begin = std::max(proposal.offset, at) - at;
      const std::uint64_t end = std::min(piece.bytes(), std::max(proposal.offset + bytes, at) - at);
      if (begin < end) in_view_.push_back({piece.begin + begin, piece.begin + end});
      at += piece.bytes();
    }
  }
  return in_view_.empty() || backend_.make_ready(in_view_, stream);
}

template <OnlineBackend Backend>
bool OnlineAllocator<Backend>::take(Place place, std::uint64_t bytes, StreamIndex stream, Reach reach) {
  const Ranges wanted = ranges(place, bytes);
  if (!backend_.make_ready(wanted, stream)) return false;
  take_ready(place, bytes, wanted, stream, reach);
  return true;
}

// Takes a place whose bytes, `wanted`, are ready.
template <OnlineBackend Backend>
void OnlineAllocator<Backend>::take_ready(Place place, std::uint64_t bytes, Ranges wanted, StreamIndex stream,
                                          Reach reach) {
  if (reach == Reach::All && backend_.is_foreign(wanted, stream)) ++counts_.borrows;
  placement_.take(wanted, stream, reach);
  if (place.view != 0) placement_.views().enter(place.view, bytes);
}

template <OnlineBackend Backend>
bool OnlineAllocator<Backend>::take_exactly(Ranges wanted, StreamIndex stream) {
  for (const Range& range : wanted) {
    if (!placement_.is_free(range)) return false;
  }
  if (!backend_.make_ready(wanted, stream)) return false;
  placement_.take(wanted, stream, Reach::All);
  return true;
}

template <OnlineBackend Backend>
void OnlineAllocator<Backend>::free_numbered(Block block, std::uint64_t bytes, StreamIndex stream, std::uint64_t number,
                                             StreamIndex preferred) {
  const Place left = place(block);
  const Ranges freed = ranges(left, bytes);
  backend_.freed(freed, stream, number);
  placement_.give(freed, preferred);
  if (left.view == 0) return;
  placement_.views().leave(left.view, bytes);
  if (stream != kAnyStream) placement_.views()[left.view].freed_at = backend_.latest_free();
}

template <OnlineBackend Backend>
bool OnlineAllocator<Backend>::grow(const Proposal& proposal, StreamIndex stream) {
  if (proposal.grow.empty()) return true;
  if (!placement_.is_for_small(proposal.grow_at)) release_idle_small(proposal.grown());
  handles_.clear();
  for (const std::uint64_t bytes : proposal.grow) handles_.push_back(Handle{bytes, 0});
  if (!backend_.create(proposal.grow_at, handles_)) return false;
  std::uint64_t at = proposal.grow_at;
  for (const Handle& handle : handles_) {
    placement_.add_handle(at, {handle.bytes, handle.id, false}, stream);
    at += handle.bytes;
  }
  counts_.handles += handles_.size();
  return true;
}

// Called before memory for other requests grows by `grown` bytes. If more than ever would then be held, gives back up
// to as many bytes in free pages for small requests, if there are enough of these to be worth the mapping calls.
template <OnlineBackend Backend>
void OnlineAllocator<Backend>::release_idle_small(std::uint64_t grown) {
  if (placement_.physical_bytes() + grown <= placement_.most_physical_bytes()) return;
  const std::vector<std::uint64_t> pages = placement_.free_pages_for_small();
  const std::uint64_t divisor = placement_.policy().held_per_small;
  if (divisor == 0 || pages.size() * placement_.page() <= placement_.physical_bytes() / divisor) return;
  backend_.look();
  std::uint64_t released = 0;
  for (const std::uint64_t at : pages) {
    const Range page{at, at + placement_.page()};
    if (released < grown && backend_.is_complete({&page, 1})) released += release(at);
  }
}

// Undoes `grow`. A handle that the backend does not take back stays and is free.
template <OnlineBackend Backend>
void OnlineAllocator<Backend>::shrink(const Proposal& proposal) {
  std::uint64_t at = proposal.grow_at;
  for (const std::uint64_t bytes : proposal.grow) {
    const HandlePlacement::Handle& handle = placement_.handles().at(at);
    if (backend_.destroy(at, Handle{handle.bytes, handle.id})) placement_.remove_handle(at);
    at += bytes;
  }
}

// Makes a view, or lengthens one.
template <OnlineBackend Backend>
std::optional<Place> OnlineAllocator<Backend>::stitch(const Proposal& proposal) {
  const std::uint64_t before = backend_.mapping_time().mapping;
  const std::optional<std::uint32_t> view = proposal.view == 0 ? make_view(proposal) : lengthen_view(proposal);
  stitching_ns_ += backend_.mapping_time().mapping - before;
  if (!view) return std::nullopt;
  ++(proposal.view == 0 ? counts_.views : counts_.lengthened);
  counts_.mapped += handles_.size();
  return Place{*view, proposal.offset};
}

template <OnlineBackend Backend>
std::optional<std::uint32_t> OnlineAllocator<Backend>::make_view(const Proposal& proposal) {
  std::uint64_t room = proposal.shown();
  std::uint64_t at = 0;
  handles_of(proposal.mapped());
  if (proposal.lent.bytes() > 0) {
    placement_.lend_addresses(proposal.lent);
  } else {
    room = std::min(placement_.policy().view_room * room, view_addresses_.largest());
    if (room < proposal.shown()) return std::nullopt;
    at = view_addresses_.best_fit(room)->begin;
    view_addresses_.subtract({at, at + room});
  }
  const std::uint32_t view = placement_.views().add(proposal.pieces, at, room, proposal.lent);
  if (backend_.map(begin_of(placement_.views()[view]), handles_)) return view;
  forget_view(view);
  return std::nullopt;
}

// A view that cannot be lengthened is not tried again: the same refusal would meet every request.
template <OnlineBackend Backend>
std::optional<std::uint32_t> OnlineAllocator<Backend>::lengthen_view(const Proposal& proposal) {
  ViewCache::CachedView& view = placement_.views()[proposal.view];
  const VirtualAddress end = behind(begin_of(view), view.bytes());
  handles_of(proposal.pieces);
  placement_.views().lengthen(proposal.view, proposal.pieces);
  if (backend_.map(end, handles_)) return proposal.view;
  placement_.views().shorten(proposal.view, proposal.pieces.size());
  view.room = view.bytes();
  return std::nullopt;
}

// Undoes `stitch`. Pre: nothing was placed in what it mapped.
template <OnlineBackend Backend>
void OnlineAllocator<Backend>::unstitch(const Proposal& proposal, std::uint32_t view) {
  if (proposal.view == 0) {
    drop_view(view);
  } else {
    shorten_view(view, proposal.pieces.size());
  }
}

// Makes room for another view in number and addresses: removes the least recently used views if they are idle.
template <OnlineBackend Backend>
bool OnlineAllocator<Backend>::has_room_for_view(std::uint64_t bytes) {
  const OnlinePolicy& policy = placement_.policy();
  const auto has_room = [&] {
    return placement_.views().count() < policy.kept_views && view_addresses_.largest() >= policy.view_room * bytes;
  };
  for (std::size_t i = 0; i < kViewsAskedAtOnce && !has_room(); ++i) {
    const std::uint32_t oldest = placement_.views().least_recent();
    if (oldest == 0) return false;
    if (is_idle(oldest)) {
      const std::uint64_t before = backend_.mapping_time().mapping;
      drop_view(oldest);
      stitching_ns_ += backend_.mapping_time().mapping - before;
    } else {
      placement_.views().refresh(oldest);  // it is examined again after the others
    }
  }
  return has_room();
}

template <OnlineBackend Backend>
bool OnlineAllocator<Backend>::is_idle(std::uint32_t view) noexcept {
  const ViewCache::CachedView& asked = placement_.views()[view];
  return asked.bytes() > 0 && asked.live == 0 && backend_.is_complete_up_to(asked.freed_at);
}

template <OnlineBackend Backend>
bool OnlineAllocator<Backend>::drop_view(std::uint32_t view) {
  const ViewCache::CachedView& dropped = placement_.views()[view];
  const bool unmapped = backend_.unmap(begin_of(dropped), handles_of(dropped.mapped()));
  give_up(view, unmapped);
  return unmapped;
}

// Removes a view. The addresses of one that is still mapped in part are not used again.
template <OnlineBackend Backend>
void OnlineAllocator<Backend>::give_up(std::uint32_t view, bool is_unmapped) {
  if (is_unmapped) {
    forget_view(view);
  } else {
    placement_.views().remove(view);
  }
}

template <OnlineBackend Backend>
bool OnlineAllocator<Backend>::shorten_view(std::uint32_t view, std::size_t pieces) {
  ViewCache::CachedView& shortened = placement_.views()[view];
  handles_of(shortened.mapped().last(pieces));
  placement_.views().shorten(view, pieces);
  const bool unmapped = backend_.unmap(behind(begin_of(shortened), shortened.bytes()), handles_);
  if (!unmapped) shortened.room = shortened.bytes();
  return unmapped;
}

// Removes a view whose addresses can be used again. Pre: nothing is mapped for it.
template <OnlineBackend Backend>
void OnlineAllocator<Backend>::forget_view(std::uint32_t view) {
  const ViewCache::CachedView& forgotten = placement_.views()[view];
  const Range lent = forgotten.lent;
  const Range addresses{forgotten.at, forgotten.at + forgotten.room};
  placement_.views().remove(view);
  if (lent.bytes() > 0) {
    placement_.return_addresses(lent);
  } else {
    view_addresses_.add(addresses);
  }
}

template <OnlineBackend Backend>
void OnlineAllocator<Backend>::drop_idle_views() {
  for (std::uint32_t view = 1; view <= placement_.views().numbers(); ++view) {
    if (is_idle(view)) {
      drop_view(view);
    } else {
      shorten_idle(view);
    }
  }
}

// A live block in a view keeps only what lies before its end. The end of a view in the home view's addresses does not
// belong to the view.
template <OnlineBackend Backend>
void OnlineAllocator<Backend>::shorten_idle(std::uint32_t view) {
  if (placement_.views()[view].lent.bytes() > 0) return;
  const std::vector<Range>& pieces = placement_.views()[view].stitched.pieces();
  while (pieces.size() > 1) {
    const Range last = pieces.back();
    if (!placement_.is_free(last) || !backend_.is_complete({&last, 1}) || !shorten_view(view, 1)) return;
  }
}

template <OnlineBackend Backend>
std::uint64_t OnlineAllocator<Backend>::release_idle(std::uint64_t keep, bool of_plan) {
  const std::uint64_t released = release_unused(keep, of_plan);
  given_back_ += released;
  return released;
}

template <OnlineBackend Backend>
std::uint64_t OnlineAllocator<Backend>::release_unused(std::uint64_t keep, bool of_plan) {
  const FreeSpace shown = shown_in_views();
  std::vector<std::uint64_t> idle;
  for (const auto& handle : placement_.handles()) {
    if ((!handle.second.planned || of_plan) && can_be_released(handle, shown)) idle.push_back(handle.first);
  }
  std::uint64_t released = 0;
  for (; !idle.empty() && placement_.physical_bytes() > keep; idle.pop_back()) released += release(idle.back());
  return released;
}

template <OnlineBackend Backend>
std::uint64_t OnlineAllocator<Backend>::release_handles(Ranges freed, std::uint32_t view) {
  if (view != 0 && is_idle(view)) drop_view(view);
  const FreeSpace shown = shown_in_views();
  std::vector<std::uint64_t> idle;
  for (const Range& range : freed) {
    auto handle = placement_.handles().upper_bound(range.begin);
    if (handle != placement_.handles().begin()) --handle;
    for (; handle != placement_.handles().end() && handle->first < range.end; ++handle) {
      if (handle->first + handle->second.bytes <= range.begin || handle->second.planned) continue;
      if (can_be_released(*handle, shown)) idle.push_back(handle->first);
    }
  }
  std::sort(idle.begin(), idle.end());
  idle.erase(std::unique(idle.begin(), idle.end()), idle.end());
  std::uint64_t released = 0;
  for (const std::uint64_t at : idle) released += release(at);
  given_back_ += released;
  return released;
}

template <OnlineBackend Backend>
FreeSpace OnlineAllocator<Backend>::shown_in_views() const {
  FreeSpace shown;
  for (std::uint32_t view = 1; view <= placement_.views().numbers(); ++view) {
    for (const Range& piece : placement_.views()[view].stitched.pieces()) shown.add(piece);
  }
  return shown;
}

// Nothing lives on the handle, no work is pending on it, and no view maps it.
template <OnlineBackend Backend>
bool OnlineAllocator<Backend>::can_be_released(const Handles::value_type& handle, const FreeSpace& shown) {
  const Range range{handle.first, handle.first + handle.second.bytes};
  return !meets(shown, range) && placement_.is_free(range) && backend_.is_complete({&range, 1});
}

// Returns the bytes given back; 0: the driver refused.
template <OnlineBackend Backend>
std::uint64_t OnlineAllocator<Backend>::release(std::uint64_t at) {
  const HandlePlacement::Handle handle = placement_.handles().at(at);
  if (!backend_.destroy(at, {handle.bytes, handle.id})) return 0;
  placement_.remove_handle(at);
  return handle.bytes;
}

template <OnlineBackend Backend>
std::uint64_t OnlineAllocator<Backend>::reclaim(std::uint64_t bytes, bool of_plan) {
  const std::uint64_t held = placement_.physical_bytes();
  const std::uint64_t keep = held - std::min(held, round_up(bytes, placement_.page()));
  const std::uint64_t released = release_unused(keep, of_plan);
  if (placement_.physical_bytes() <= keep) return released;
  drop_idle_views();
  return released + release_unused(keep, of_plan);
}

// Fills `handles_` with the handles of the pieces.
template <OnlineBackend Backend>
auto OnlineAllocator<Backend>::handles_of(Ranges pieces) -> const std::vector<Handle>& {
  handles_.clear();
  for (const Range& piece : pieces) {
    auto handle = placement_.handles().find(piece.begin);
    for (; handle != placement_.handles().end() && handle->first < piece.end; ++handle) {
      handles_.push_back(Handle{handle->second.bytes, handle->second.id});
    }
  }
  return handles_;
}

template <OnlineBackend Backend>
auto OnlineAllocator<Backend>::ranges_of_view(Place place, std::uint64_t bytes) -> Ranges {
  in_view_.clear();
  placement_.translate(place, bytes, in_view_);
  return in_view_;
}

}  // namespace stalloc::plan
