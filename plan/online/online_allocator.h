// SPDX-License-Identifier: Apache-2.0
// Serves requests as they come, when the future is unknown: the run-time policy, implemented once.
//
// The preloaded library runs it over a device's memory (interpose/serve/dynamic/device_backend.h), simulations over
// nothing (plan/simulate/null_backend.h). Both do the same things in the same order, so a simulation shows what a
// program would hold. The design is in docs/design.md, "Dynamic: stitch before you grow", and the numbers are in
// docs/policy.md.
//
// How a request is served
// -----------------------
//
// A request tries these steps in this order, and the first one that succeeds serves it. "Own" bytes are free bytes last
// freed by, or created for, the request's stream. The placement (handle_placement.h) finds places and proposes new
// views and handles, and the memory (mapped_memory.h) carries the proposals out.
//
//   1. The deferred free. The block that was freed last is kept aside for a moment. A request of its size on its stream
//      gets it back as it was, because programs make a tensor and drop it again and again. Any other use of the
//      placement completes that free first.
//   2. Own bytes that are mapped: a contiguous free range of the home view, else a free stretch of a stitched view that
//      was made before.
//   3. Bytes of other streams whose last use is known to be complete. Using them costs nothing.
//   4. A stitched view over own bytes, new or repaired, without creating memory.
//   5. Bytes of any stream, after a wait on the device for the streams that freed them, if the backend can make the
//      request's stream wait for these frees: mapped ones as in step 2, else a stitched view, with new memory for what
//      is missing. If the stream would have to wait for a stream after which the program itself is about to order it,
//      the request prefers a place at home that fits nearly as well and needs no such wait.
//   6. New memory for the bytes that own bytes lack: after the last handle at home, or within a stitched view.
//   7. New memory alone, when own bytes could not be made ready.
//
// Steps 3 and 5 apply when another stream than the request's has free bytes. `CrossStream` changes what a request does
// about those. With Share, the default, a request that is not small treats the bytes of all streams as its own at
// first: it tries step 5 right after step 1. In the later steps, its own bytes are those that its stream may use
// without another wait; they are looked up only then. OrderThenGrow is the order above. GrowThenOrder tries step 5
// after step 6. Never omits step 5.
//
// A request for any stream at once (`kAnyStream`, cudaMalloc) cannot be made to wait: it gets only bytes whose frees
// are complete. As a last resort, when the device is out of memory, a request waits before it grows, and stitches in
// any case; a request for any stream at once also searches the free bytes of all streams, at several places of a range;
// and a small request, which otherwise uses only its own kind of handles and no view, takes a hole among large ones.
//
// The time for mapping is measured and limited to a share of the program's time (mapping_budget.h). While it exceeds
// this share, new memory comes in larger handles, so that growing, stitching and giving back all take fewer calls.
// While stitching alone exceeds it, no step stitches where it can grow, as long as little memory is free. The limit for
// "little" grows with the time that is owed. Where more is free, a request that would be stitched of many small handles
// exchanges such handles for large ones, right after step 2.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "plan/cross_stream.h"
#include "plan/online/handle_placement.h"
#include "plan/online/mapped_memory.h"
#include "plan/online/mapping_budget.h"
#include "plan/online/online_backend.h"
#include "plan/online/online_policy.h"

namespace stalloc::plan {

// All sizes are in bytes and multiples of kUnitBytes; a request has at least one unit. Not thread-safe: in the library
// the heap's lock covers it. Functions throw only for want of host memory (std::bad_alloc); free bytes may then be
// forgotten, never handed out twice.
template <OnlineBackend Backend>
class alignas(64) OnlineAllocator {  // the members that nearly every request touches lie in one cache line
 public:
  using Memory = MappedMemory<Backend>;
  using Handle = typename Backend::Handle;
  using Block = typename Backend::Block;
  using Ranges = std::span<const Range>;

  struct Options {
    HandlePlacement::Options placement;
    CrossStream cross_stream = kDefaultCrossStream;
    std::uint64_t view_bytes = 0;  // addresses that the backend has for stitched views
  };

  using Counts = OnlineCounts;

  explicit OnlineAllocator(const Options& options, Backend backend = {})
      : most_deferred_bytes_(options.placement.policy.deferred_free_bytes),
        memory_(options_of_placement(options), options.view_bytes, std::move(backend)),
        cross_stream_(options.cross_stream),
        budget_(options.placement.policy) {}

  // --- Requests ---

  // Takes `bytes` that work on `stream` may use from now on. Returns nothing, and takes nothing, when there is no place
  // and the backend creates no more memory. `last_resort`: the device is out of memory. Throws std::bad_alloc.
  std::optional<Place> allocate(std::uint64_t bytes, StreamIndex stream, bool last_resort = false);
  // The same without creating or mapping anything: nothing is returned where `allocate` would have to.
  std::optional<Place> allocate_mapped(std::uint64_t bytes, StreamIndex stream);
  // Takes exactly these ranges, which a plan chose, if they are free and `stream` may use them.
  bool take_exactly(Ranges wanted, StreamIndex stream);
  // The same for a place in memory of MappedMemory::exchange_for_plan.
  bool take_planned(Place place, std::uint64_t bytes, StreamIndex stream);

  // Gives back a block of `bytes`. The work of `stream` up to now may still use it; kAnyStream: the device has finished
  // with it. For requests of the stream `preferred`, the bytes count as their own. Throws std::bad_alloc; the block is
  // then never used again.
  void free(Block block, std::uint64_t bytes, StreamIndex stream, StreamIndex preferred) {
    free_numbered(block, bytes, stream, stream == kAnyStream ? 0 : backend().assign_free_number(stream), preferred);
  }
  void free(Block block, std::uint64_t bytes, StreamIndex stream) { free(block, bytes, stream, stream); }
  // Whether large requests of other streams may get a block's bytes. These requests are stitched from many free ranges,
  // and their stream must be able to wait for all those frees.
  [[nodiscard]] bool serves_large_of_others(Block block, std::uint64_t bytes) noexcept {
    if (!backend().is_shared() || cross_stream_ == CrossStream::Never) return false;
    return !placement().is_small(bytes) || !placement().is_for_small(place(block).offset);
  }
  // As `free`, but the free is deferred if the block is no larger than the policy's `deferred_free_bytes`. Simulations
  // defer every free; the library defers those on the stream that was used last (heap_free.cpp). Completes the free
  // that was deferred before. Pre: `stream` is not kAnyStream, and keeps its number until the free is completed. Throws
  // std::bad_alloc; either block may then never be used again.
  void defer_free(Block block, std::uint64_t bytes, StreamIndex stream) {
    complete_deferred_free();
    if (bytes > most_deferred_bytes_) {
      free(block, bytes, stream);
    } else {
      deferred_.block = block;
      deferred_.bytes = bytes;
      deferred_.stream = stream;
      deferred_.number = backend().assign_free_number(stream);
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
    if (deferred_.block.view != 0) ++memory_.counts().view_hits;
    return deferred_.block;
  }

  // --- Places ---

  // Where a block lies.
  [[nodiscard]] Place place(Block block) const noexcept {
    return backend().place(block,
                           block.view == 0 ? VirtualAddress{} : Memory::begin_of(placement().views()[block.view]));
  }
  // The address of a place.
  [[nodiscard]] VirtualAddress address(Place place) const noexcept {
    if (place.view == 0) return {VirtualAddress::Space::Home, place.offset};
    return Memory::behind(Memory::begin_of(placement().views()[place.view]), place.offset);
  }
  // The physical ranges that a place shows. Valid until the next call. Throws std::bad_alloc.
  [[nodiscard]] Ranges ranges(Place place, std::uint64_t bytes) {
    if (place.view != 0) return ranges_of_view(place, bytes);
    at_home_ = {place.offset, place.offset + bytes};
    return {&at_home_, 1};
  }

  // --- Memory, for callers that give it back ---

  // Complete the deferred free before you examine free bytes or release memory.
  [[nodiscard]] Memory& memory() noexcept { return memory_; }
  // Whether the caller may give idle memory back although nobody asks for it, as the library does when the program
  // synchronizes. See MappingBudget::may_give_back.
  [[nodiscard]] bool may_give_back_unasked() noexcept { return budget_.may_give_back(backend().mapping_time()); }
  // It took so many nanoseconds, beside the mapping: with much memory, looking for what is idle takes milliseconds.
  void pay_for_giving_back(std::uint64_t nanoseconds) noexcept { budget_.pay_for_giving_back(nanoseconds); }

  // A caller that changes the placement must make mappings and handles agree with it.
  [[nodiscard]] HandlePlacement& placement() noexcept { return memory_.placement(); }
  [[nodiscard]] const HandlePlacement& placement() const noexcept { return memory_.placement(); }
  [[nodiscard]] Backend& backend() noexcept { return memory_.backend(); }
  [[nodiscard]] const Backend& backend() const noexcept { return memory_.backend(); }
  [[nodiscard]] const Counts& counts() const noexcept { return memory_.counts(); }

 private:
  using StreamScope = HandlePlacement::StreamScope;
  using Proposal = HandlePlacement::Proposal;

  struct DeferredFree {
    Block block;
    std::uint64_t bytes = 0;
    StreamIndex stream = kNotDeferred;
    std::uint64_t number = 0;  // of the free
  };

  static constexpr StreamIndex kNotDeferred = ~StreamIndex{0};
  // How many free ranges are tried, each at its beginning, for a request that may use bytes of other streams.
  static constexpr std::size_t kForeignRangesTried = 4;
  // A last resort for a request that cannot wait tries many more ranges, and places in them a quarter of the request
  // apart. Both numbers have a limit since each try may query the device.
  static constexpr std::size_t kRangesSearched = 1024;
  static constexpr std::uint64_t kPlacesTriedInRange = 64;
  static constexpr std::size_t kFewestRepaired = 2;  // handles: one leaves the view, and another enters it

  [[nodiscard]] Overdraft current_overdraft() noexcept {
    return budget_.overdraft(backend().mapping_time(), memory_.stitching_nanoseconds());
  }

  // True when the request treats the bytes of all streams as its own at first.
  [[nodiscard]] bool shares_bytes(std::uint64_t bytes, StreamIndex stream) const noexcept {
    return cross_stream_ == CrossStream::Share && stream != kAnyStream && !placement().is_small(bytes);
  }

  // With Share, own large bytes are needed only by a request that must do without those of other streams.
  [[nodiscard]] static HandlePlacement::Options options_of_placement(const Options& options) noexcept {
    HandlePlacement::Options placement = options.placement;
    placement.large_by_stream = options.cross_stream != CrossStream::Share;
    return placement;
  }

  // The steps of a request.
  std::optional<Place> take_mapped(std::uint64_t bytes, StreamIndex stream, StreamScope scope);
  std::optional<Place> take_without_avoidable_wait(Place best, std::uint64_t bytes, StreamIndex stream);
  std::optional<Place> exchange(std::uint64_t bytes, StreamIndex stream);
  std::optional<Place> take_of_any_stream(std::uint64_t bytes, StreamIndex stream, bool last_resort);
  std::optional<Place> take_ordered(std::uint64_t bytes, StreamIndex stream);
  std::optional<Place> make(std::uint64_t bytes, StreamIndex stream, StreamScope scope, bool may_grow);
  void find_own(std::uint64_t bytes, StreamIndex stream, StreamScope scope);
  std::optional<HandlePlacement::Repair> propose_repair(std::uint64_t bytes, StreamIndex stream, StreamScope scope,
                                                        std::size_t most);

  [[nodiscard]] std::uint64_t coarseness_of_returns() const noexcept;

  // Taking a place that was found or made, and giving it back.
  bool take(Place place, std::uint64_t bytes, StreamIndex stream, StreamScope scope);
  void take_ready(Place place, std::uint64_t bytes, Ranges wanted, StreamIndex stream, StreamScope scope);
  bool make_ready(const Proposal& proposal, std::uint64_t bytes, StreamIndex stream);
  void free_deferred() {
    const StreamIndex stream = std::exchange(deferred_.stream, kNotDeferred);
    free_numbered(deferred_.block, deferred_.bytes, stream, deferred_.number, stream);
  }
  void free_numbered(Block block, std::uint64_t bytes, StreamIndex stream, std::uint64_t number, StreamIndex preferred);

  Ranges ranges_of_view(Place place, std::uint64_t bytes);

  // These lie in the first cache line.
  DeferredFree deferred_;
  const std::uint64_t most_deferred_bytes_;
  Memory memory_;  // begins with the counts

  const CrossStream cross_stream_;
  MappingBudget budget_;
  Range at_home_;               // what `ranges` returned last, of a place at home
  std::vector<Range> in_view_;  // the same, of a place in a stitched view
};

template <OnlineBackend Backend>
std::optional<Place> OnlineAllocator<Backend>::allocate(std::uint64_t bytes, StreamIndex stream, bool last_resort) {
  std::optional<Place> place = allocate_mapped(bytes, stream);
  if (place) return place;

  const bool is_ordered = stream != kAnyStream;
  const bool shares = shares_bytes(bytes, stream);
  Overdraft overdraft;
  if (!last_resort) {
    overdraft = current_overdraft();
    overdraft.coarseness = std::max(overdraft.coarseness, coarseness_of_returns());
  }
  placement().set_overdraft(overdraft);
  if (overdraft.held_per_slack > 0) place = exchange(bytes, stream);
  if (!place && shares) place = make(bytes, stream, StreamScope::All, true);  // step 5, which comes first with Share
  const bool several = placement().others_have_bytes(stream);
  if (!place && several) place = take_of_any_stream(bytes, stream, false);  // step 3
  if (!place) place = make(bytes, stream, StreamScope::Own, false);         // step 4

  const bool may_wait = several && is_ordered && cross_stream_ != CrossStream::Never;
  const bool prefers_growing = cross_stream_ == CrossStream::GrowThenOrder && !last_resort;
  if (!place && may_wait && !prefers_growing && !shares) place = take_ordered(bytes, stream);  // step 5
  if (!place) place = make(bytes, stream, StreamScope::Own, true);                             // step 6
  if (!place && may_wait && prefers_growing) place = take_ordered(bytes, stream);              // step 5, after step 6
  if (!place && several && !is_ordered && last_resort) place = take_ordered(bytes, stream);
  placement().set_overdraft({});
  if (!place) place = make(bytes, stream, StreamScope::Own, false);  // step 4, whatever mapping may cost
  if (!place) place = make(bytes, stream, StreamScope::None, true);  // step 7
  if (!place && last_resort) place = take_of_any_stream(bytes, stream, true);
  return place;
}

// Steps 1 and 2; with Share, step 2 includes the mapped part of step 5.
template <OnlineBackend Backend>
std::optional<Place> OnlineAllocator<Backend>::allocate_mapped(std::uint64_t bytes, StreamIndex stream) {
  if (deferred_serves(bytes, stream)) return place(reuse_deferred());
  complete_deferred_free();
  return take_mapped(bytes, stream, shares_bytes(bytes, stream) ? StreamScope::All : StreamScope::Own);
}

// Takes free bytes that are mapped: at home, else in a view made before.
template <OnlineBackend Backend>
std::optional<Place> OnlineAllocator<Backend>::take_mapped(std::uint64_t bytes, StreamIndex stream, StreamScope scope) {
  const auto home = placement().find_home(bytes, stream, scope);
  const bool chooses = scope == StreamScope::All && stream != kAnyStream && placement().others_have_bytes(stream);
  if (home && chooses) {
    if (const auto ready = take_without_avoidable_wait(*home, bytes, stream)) return ready;
  }
  if (home && take(*home, bytes, stream, scope)) return home;
  const auto found = placement().find_in_views(bytes, stream, scope);
  if (!found || !take(*found, bytes, stream, scope)) return std::nullopt;
  ++memory_.counts().view_hits;
  return found;
}

// Takes the best place at home. If the stream would have to wait there for a stream after which the program itself is
// about to order it, takes a place that fits nearly as well and needs no such wait, if there is one.
template <OnlineBackend Backend>
std::optional<Place> OnlineAllocator<Backend>::take_without_avoidable_wait(Place best, std::uint64_t bytes,
                                                                           StreamIndex stream) {
  const auto take_at = [&](std::uint64_t begin) -> std::optional<Place> {
    const Place place{0, begin};
    const Ranges wanted = ranges(place, bytes);
    if (!backend().make_ready_without_avoidable_wait(wanted, stream)) return std::nullopt;
    take_ready(place, bytes, wanted, stream, StreamScope::All);
    return place;
  };
  if (const auto place = take_at(best.offset)) return place;
  std::array<Range, HandlePlacement::kMostCompared> fits;
  const std::size_t count = placement().candidates(bytes, std::span(fits).first(placement().compared_fits()));
  for (const Range& fit : std::span(fits).first(count)) {
    if (placement().is_of_plan(fit.begin)) break;  // its slots will be wanted, and these ranges are the last
    const std::array ends{fit.begin, fit.end - bytes};
    for (const std::uint64_t begin : std::span(ends).first(fit.bytes() == bytes ? 1 : 2)) {
      if (begin == best.offset) continue;  // it was tried
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
  if (placement().free_bytes() < bytes) return std::nullopt;
  const auto proposal = placement().propose(bytes, stream, StreamScope::All, false, true);
  if (!proposal) return std::nullopt;
  placement().set_room(backend().room(bytes));
  const std::vector<std::uint64_t> larger = placement().new_handles(bytes, bytes);
  const std::uint64_t times = placement().policy().handles_per_exchanged;
  if (memory_.handle_count(proposal->pieces) / larger.size() < times) return std::nullopt;
  backend().poll_frees();
  return memory_.release_small(bytes, larger.front() / times) ? make(bytes, stream, StreamScope::None, true)
                                                              : std::nullopt;
}

// Returns how many times larger new handles are because the program gives its memory back; 1 if it does not.
template <OnlineBackend Backend>
std::uint64_t OnlineAllocator<Backend>::coarseness_of_returns() const noexcept {
  const std::uint64_t times = placement().policy().coarsest;
  const std::uint64_t given_back = memory_.given_back_bytes();
  return given_back > 0 && given_back >= placement().peak_physical_bytes() / times ? times : 1;
}

// Takes home bytes of any stream whose last use is complete. As a last resort, also takes others after waits and, for
// a small request, bytes among large ones; and a request for any stream at once, which cannot wait, tries many free
// ranges and several places in each, since work may be pending on a part of it alone.
template <OnlineBackend Backend>
std::optional<Place> OnlineAllocator<Backend>::take_of_any_stream(std::uint64_t bytes, StreamIndex stream,
                                                                  bool last_resort) {
  const bool may_wait = last_resort && cross_stream_ != CrossStream::Never;
  const bool searches = last_resort && stream == kAnyStream;
  std::array<Range, kForeignRangesTried> first;
  std::vector<Range> all(searches ? kRangesSearched : 0);
  const std::span<Range> candidates = searches ? std::span(all) : std::span(first);
  const std::size_t count = placement().candidates(bytes, candidates, last_resort);
  for (const Range& candidate : candidates.first(count)) {
    const std::uint64_t step = round_up(std::max(bytes / 4, candidate.bytes() / kPlacesTriedInRange), kUnitBytes);
    for (std::uint64_t begin = candidate.begin; begin + bytes <= candidate.end; begin += step) {
      const Range range{begin, begin + bytes};
      const Place place{0, begin};
      const bool tries = may_wait || backend().is_complete({&range, 1});
      if (tries && take(place, bytes, stream, StreamScope::All)) return place;
      if (!searches) break;
    }
  }
  return std::nullopt;
}

// Takes bytes of any stream, after waits for those that freed them; for any stream at once, only bytes whose frees are
// complete.
template <OnlineBackend Backend>
std::optional<Place> OnlineAllocator<Backend>::take_ordered(std::uint64_t bytes, StreamIndex stream) {
  const auto place = take_mapped(bytes, stream, StreamScope::All);
  return place ? place : make(bytes, stream, StreamScope::All, true);
}

// Makes room out of free handles and, where they are not enough and it may grow, new ones.
template <OnlineBackend Backend>
std::optional<Place> OnlineAllocator<Backend>::make(std::uint64_t bytes, StreamIndex stream, StreamScope scope,
                                                    bool may_grow) {
  const bool may_stitch = placement().is_stitchable(bytes) && memory_.make_room_for_view(bytes);
  if (!may_grow && !may_stitch) return std::nullopt;
  if (may_grow && placement().depends_on_room(bytes)) placement().set_room(backend().room(bytes));
  find_own(bytes, stream, scope);
  auto proposal = placement().propose(bytes, stream, scope, may_grow, may_stitch && scope != StreamScope::None);
  if (proposal && !proposal->pieces.empty() && proposal->grow.empty() && stream != kAnyStream) {
    const std::size_t most = memory_.handle_count(proposal->pieces) / placement().policy().handles_per_repaired;
    const auto repair = propose_repair(bytes, stream, scope, most);
    if (repair) {
      const auto repaired = memory_.carry_out(*repair);
      if (repaired && take(*repaired, bytes, stream, scope)) return repaired;
      find_own(bytes, stream, scope);  // views and free bytes are not what they were
      proposal = placement().propose(bytes, stream, scope, may_grow, may_stitch);
    }
  }
  if (!proposal || !make_ready(*proposal, bytes, stream)) return std::nullopt;
  const std::optional<Place> place = memory_.carry_out(*proposal, stream);
  if (!place) return std::nullopt;
  if (!take(*place, bytes, stream, scope)) {
    memory_.undo(*proposal, *place);
    return std::nullopt;
  }
  if (!proposal->grow.empty()) ++memory_.counts().grows;
  return place;
}

// Looks up own bytes that are not kept apart: those that the stream may use without another wait.
template <OnlineBackend Backend>
void OnlineAllocator<Backend>::find_own(std::uint64_t bytes, StreamIndex stream, StreamScope scope) {
  if (scope != StreamScope::Own || !shares_bytes(bytes, stream)) return;
  placement().find_own(stream, [&](Range range) { return backend().is_ready({&range, 1}, stream); });
}

// Proposes to repair an idle view, if no more than `most` handles leave it or come into it.
template <OnlineBackend Backend>
std::optional<HandlePlacement::Repair> OnlineAllocator<Backend>::propose_repair(std::uint64_t bytes, StreamIndex stream,
                                                                                StreamScope scope, std::size_t most) {
  if (most < kFewestRepaired) return std::nullopt;
  backend().poll_frees();
  return placement().propose_repair(bytes, stream, scope, most, [this](std::uint32_t view) {
    return backend().is_known_complete_up_to(placement().views()[view].freed_at);
  });
}

// Makes the free bytes of a proposed place ready, before anything is created or mapped for it.
template <OnlineBackend Backend>
bool OnlineAllocator<Backend>::make_ready(const Proposal& proposal, std::uint64_t bytes, StreamIndex stream) {
  in_view_.clear();
  if (proposal.pieces.empty()) {
    if (proposal.offset < proposal.grow_at) in_view_.push_back({proposal.offset, proposal.grow_at});
  } else {
    std::uint64_t at = 0;
    for (const Range& piece : proposal.pieces) {
      const bool is_new = !proposal.grow.empty() && piece.begin == proposal.grow_at;
      const std::uint64_t begin = std::max(proposal.offset, at) - at;
      const std::uint64_t end = std::min(piece.bytes(), std::max(proposal.offset + bytes, at) - at);
      if (begin < end && !is_new) in_view_.push_back({piece.begin + begin, piece.begin + end});
      at += piece.bytes();
    }
  }
  return in_view_.empty() || backend().make_ready(in_view_, stream);
}

template <OnlineBackend Backend>
bool OnlineAllocator<Backend>::take(Place place, std::uint64_t bytes, StreamIndex stream, StreamScope scope) {
  const Ranges wanted = ranges(place, bytes);
  if (!backend().make_ready(wanted, stream)) return false;
  take_ready(place, bytes, wanted, stream, scope);
  return true;
}

// Takes a place whose bytes, `wanted`, are ready.
template <OnlineBackend Backend>
void OnlineAllocator<Backend>::take_ready(Place place, std::uint64_t bytes, Ranges wanted, StreamIndex stream,
                                          StreamScope scope) {
  if (scope == StreamScope::All && backend().made_foreign_ready()) ++memory_.counts().borrows;
  placement().take(wanted, stream, scope);
  if (place.view != 0) placement().views().enter(place.view, bytes);
}

template <OnlineBackend Backend>
bool OnlineAllocator<Backend>::take_exactly(Ranges wanted, StreamIndex stream) {
  for (const Range& range : wanted) {
    if (!placement().is_free(range)) return false;
  }
  if (!backend().make_ready(wanted, stream)) return false;
  placement().take(wanted, stream, StreamScope::All);
  return true;
}

template <OnlineBackend Backend>
bool OnlineAllocator<Backend>::take_planned(Place place, std::uint64_t bytes, StreamIndex stream) {
  const Ranges wanted = ranges(place, bytes);
  if (!take_exactly(wanted, stream)) return false;
  if (place.view != 0) placement().views().enter(place.view, bytes);
  return true;
}

template <OnlineBackend Backend>
void OnlineAllocator<Backend>::free_numbered(Block block, std::uint64_t bytes, StreamIndex stream, std::uint64_t number,
                                             StreamIndex preferred) {
  const Place left = place(block);
  const Ranges freed = ranges(left, bytes);
  backend().freed(freed, stream, number);
  placement().give(freed, preferred);
  if (left.view == 0) return;
  placement().views().leave(left.view, bytes);
  if (stream != kAnyStream) placement().views()[left.view].freed_at = backend().latest_free();
}

template <OnlineBackend Backend>
auto OnlineAllocator<Backend>::ranges_of_view(Place place, std::uint64_t bytes) -> Ranges {
  in_view_.clear();
  placement().translate(place, bytes, in_view_);
  return in_view_;
}

}  // namespace stalloc::plan
