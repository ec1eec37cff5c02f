// SPDX-License-Identifier: Apache-2.0
// How a heap serves a request. A request takes the heap's lock once, unless its stream must wait or memory is scarce.
//
//   1. `allocate` checks whether the stream is being captured, and takes the lock.
//   2. Fast path: programs often free a tensor and then allocate one of the same size. So without a plan, the latest
//      free is deferred, and a request of its size on its stream gets the same block (`Dynamic::deferred_serves`,
//      `reuse_deferred`).
//   3. Every other request goes through `allocate_slow_path` to `serve`. It first completes the deferred free
//      (`complete_deferred_free`), and collects pending frees if it is time (`PendingFrees::streams_to_query`).
//   4. A captured request belongs to its graph: `Planned::pass_through` moves the cursor, and CUDA serves the request.
//   5. `Planned::next` returns the slot that the plan has for the request, if any. `admit` finds the indices of the
//      stream and the pool, and reserves an entry in the live table. If that fails, CUDA serves the request.
//   6. `serve_slot` takes exactly the slot's bytes if all of them are free and can be ordered on the stream: from the
//      plan's free bytes (`Planned::take`), or from the dynamic sub-allocator's once both were merged
//      (`Dynamic::take_exactly`). Otherwise `serve_in_gap` takes bytes that no slot needs while the request lives
//      (`Planned::find_gap`). Before the plan's body begins, `serve_spare` takes a slot of the request's size that the
//      plan never frees, if the program does not follow the plan's order (`Planned::offer_spare`).
//   7. `serve_dynamic` serves a request that has no slot or whose slot is taken. It merges the plan's free bytes before
//      memory grows much beside them (`needs_bytes_of_plan`, `merge`). Without a plan, it takes the place that the
//      request has in the plan of the program's step, if there is one (`serve_step`). Otherwise it calls
//      `Dynamic::allocate`.
//   8. If the stream must wait for the frees of others, `make_waits` makes the waits without the lock, since the queue
//      of the stream may be full. If one fails, the bytes are taken back (`take_back`).
//   9. `serve_under_pressure` (heap_pressure.cpp) comes last, when the driver has no more memory.
//  10. CUDA serves every other request, and the caller reports that by `note_unplanned`.
//
// `allocate_sync` does the steps from 3 on, for all streams at once.
#include "interpose/serve/heap/heap.h"

#include <cstdio>
#include <mutex>
#include <new>
#include <utility>

namespace stalloc::serve {
namespace {

std::optional<CUdeviceptr> none_if_zero(CUdeviceptr address) {
  return address == 0 ? std::nullopt : std::optional(address);
}

}  // namespace

// Tells the planner of steps of a request that was just inserted in the live table.
[[gnu::always_inline]] inline void Heap::note_served(std::size_t bytes, StreamOrdinal stream) noexcept {
  try {
    steps_->served(*dynamic_, live_.last_number(), rounded(bytes), stream);
  } catch (const std::bad_alloc&) {
    steps_->restart(*dynamic_);
  }
}

// Tells the planner of steps if all frees before a synchronization are known to be complete, but for the deferred one.
// A few small frees may have followed.
[[gnu::noinline]] void Heap::note_settled() noexcept {
  const std::uint64_t after = synchronized_after_.exchange(0, std::memory_order_relaxed);
  if (!steps_ || after == 0 || !order_.is_known_complete(after - 1)) return;
  try {
    steps_->settled();
  } catch (const std::bad_alloc&) {
    steps_->restart(*dynamic_);
  }
}

std::optional<CUdeviceptr> Heap::allocate(std::size_t bytes, StreamKey stream, CUmemoryPool pool,
                                          bool* exhausted) noexcept {
  if (bytes > device_bytes_) [[unlikely]] {
    if (exhausted != nullptr) *exhausted = true;
    return std::nullopt;
  }
  bool capturing = false;
  if (driver_.is_capturing(stream.handle, &capturing) != CUDA_SUCCESS) capturing = true;
  std::unique_lock lock(mutex_);
  const bool fits = dynamic_ && !capturing && dynamic_->deferred_serves(rounded(bytes), order_.latest_ordinal(stream));
  const PoolIndex index = fits ? figures_.pool_index(pool) : kNoPool;
  if (index == kNoPool) [[unlikely]] {
    return allocate_slow_path(std::move(lock), bytes, &stream, pool, capturing, exhausted);
  }
  const DeviceBackend::Block& block = dynamic_->reuse_deferred();
  live_.insert(
      {block.address, bytes, block.view, Origin::Dynamic, index, order_.latest_ordinal(stream)});  // its free left room
  figures_.add_dynamic(bytes, index);
  if (steps_ && steps_->may_have_slot(rounded(bytes))) note_served(bytes, order_.latest_ordinal(stream));
  return block.address;
}

std::optional<CUdeviceptr> Heap::allocate_sync(std::size_t bytes) noexcept {
  // The free of this block will wait for the context; the fence must be able to do that on a full device.
  if (bytes > device_bytes_ || !fence_.prepare()) return std::nullopt;
  create_events_ahead();
  return allocate_slow_path(std::unique_lock(mutex_), bytes, nullptr, nullptr, false);
}

[[gnu::noinline]] std::optional<CUdeviceptr> Heap::allocate_slow_path(std::unique_lock<HeapMutex> lock,
                                                                      std::size_t bytes, const StreamKey* stream,
                                                                      CUmemoryPool pool, bool capturing,
                                                                      bool* exhausted) noexcept {
  try {
    return none_if_zero(serve(std::move(lock), bytes, stream, pool, capturing, exhausted));
  } catch (const std::bad_alloc&) {
    return std::nullopt;
  }
}

CUdeviceptr Heap::serve(std::unique_lock<HeapMutex> lock, std::size_t bytes, const StreamKey* stream, CUmemoryPool pool,
                        bool capturing, bool* exhausted) {
  if (bytes == 0 || is_closed() || refuses()) return 0;
  if (order_.has_waits()) [[unlikely]]
    order_.forget_waits();  // of a request that was given up
  if (synchronized_after_.load(std::memory_order_relaxed) != 0) [[unlikely]]
    note_settled();
  complete_deferred_free();
  if (const std::size_t streams = pending_frees_.streams_to_query(); streams != 0) collect_pending_frees(streams);
  if (capturing) {
    planned_.pass_through(bytes);
    return 0;
  }
  CUdeviceptr served = 0;
  Request request;
  bool admitted = false;
  const Cursor::Next next = planned_.next(bytes);
  if (next.answer != Cursor::Answer::Original) admitted = admit(bytes, stream, pool, &request);
  if (admitted && next.answer == Cursor::Answer::Serve) served = serve_slot(next.slot, request);
  if (admitted && served == 0) served = serve_spare(request);
  const bool dropped_now = planned_.drop_if_unfit();
  if (dropped_now && options_.plan_is_strict) refuses_.store(true);
  if (admitted && served == 0 && dynamic_) served = serve_dynamic(request, false);
  const auto planned_step = steps_ ? steps_->taken_up() : std::nullopt;
  const bool found = served != 0;
  if (order_.has_waits()) [[unlikely]]
    served = make_waits(lock, served);
  lock.unlock();
  if (planned_step) [[unlikely]]
    log_planned_step(*planned_step);
  if (dropped_now) [[unlikely]]
    log_dropped_plan();
  if (found || !admitted || !dynamic_) return served;
  served = serve_under_pressure(stream, pool, request);
  if (served == 0 && exhausted != nullptr) *exhausted = true;
  return served;
}

// Makes the waits that a request needs for the bytes that it was served, without the lock. Returns the address, or 0 if
// a wait failed: CUDA then serves the request, or fails as well.
[[gnu::noinline]] CUdeviceptr Heap::make_waits(std::unique_lock<HeapMutex>& lock, CUdeviceptr served) noexcept {
  if (served == 0) return 0;
  StreamOrder::Waits waits = order_.take_waits();
  lock.unlock();
  order_.make(waits);
  lock.lock();
  const bool all = waits.all_are_made();
  order_.note_made(std::move(waits));
  if (all) return served;
  complete_deferred_free();
  take_back(served);
  return 0;
}

// Logs that the plan was dropped. Called without the lock: after a plan was dropped, its first difference is constant.
void Heap::log_dropped_plan() const noexcept {
  if (log_ == nullptr) return;
  char where[128] = "";
  if (const auto difference = planned_.first_difference()) {
    char planned[48] = "has ended";
    if (difference->expected != 0) {
      std::snprintf(planned, sizeof planned, "has %llu", static_cast<unsigned long long>(difference->expected));
    }
    std::snprintf(where, sizeof where, "; the first difference: request %llu is of %llu bytes, where the plan %s",
                  static_cast<unsigned long long>(difference->request),
                  static_cast<unsigned long long>(difference->bytes), planned);
  }
  char text[384];
  std::snprintf(text, sizeof text,
                "the plan does not fit this program and is no longer used (was it made from another run?)%s%s%s", where,
                options_.plan_is_strict ? "; " : "", options_.plan_is_strict ? kStrictPlanFails : "");
  log_(LogKind::Warning, text);
}

void Heap::log_planned_step(const StepServer::TakenUp& step) const noexcept {
  if (log_ == nullptr) return;
  char text[192];
  std::snprintf(text, sizeof text,
                "device %d: the program repeats a step of %zu large requests, which from now on have planned places in "
                "%.2f GiB",
                device_, step.requests, static_cast<double>(step.bytes) / (1024.0 * 1024.0 * 1024.0));
  log_(LogKind::Info, text);
}

// Fills `request`. False if the request cannot be tracked: its stream belongs to another context, there are too many
// streams or pools, or host memory is missing.
bool Heap::admit(std::size_t bytes, const StreamKey* stream, CUmemoryPool pool, Request* request) {
  request->bytes = bytes;
  if (!live_.reserve_one()) return false;
  if (stream == nullptr) return true;
  request->stream = order_.ordinal(*stream, true);
  request->pool = figures_.pool_index(pool);
  return request->stream != kNoStream && request->pool != kNoPool;
}

CUdeviceptr Heap::serve_slot(std::uint32_t slot, const Request& request) {
  CUdeviceptr address = take_slot(slot, request);
  if (address == 0 && collect_pending_frees(PendingFrees::kStreamsPerQuery)) address = take_slot(slot, request);
  if (address != 0) return address;
  figures_.count_refused_slot();
  return dynamic_ ? serve_in_gap(slot, request) : 0;
}

// Serves a request whose slot is taken, without displacing another one.
CUdeviceptr Heap::serve_in_gap(std::uint32_t slot, const Request& request) {
  if (needs_bytes_of_plan(request)) merge(request.stream);
  if (planned_.tracks_free_bytes()) return 0;
  const auto gap = planned_.find_gap(slot, rounded(request.bytes), dynamic_->free_space_of_plan());
  if (!gap) return 0;
  if (planned_.withheld_bytes() > 0) dynamic_->add_free(planned_.take_withheld({&*gap, 1}), request.stream);
  const Place place{0, gap->begin};
  return dynamic_->take_planned(place, gap->bytes(), request.stream) ? note_dynamic(place, request) : 0;
}

CUdeviceptr Heap::serve_spare(const Request& request) {
  CUdeviceptr address = 0;
  const bool served = planned_.offer_spare(request.bytes, [&](std::uint32_t slot) {
    address = take_slot(slot, request);
    return address != 0;
  });
  if (served) figures_.count_spare_slot();
  return address;
}

// Returns 0 if some bytes of the slot are taken, or if the request's stream cannot be ordered after their frees.
CUdeviceptr Heap::take_slot(std::uint32_t slot, const Request& request) {
  const PhysicalRanges wanted = planned_.ranges(slot);
  if (planned_.withheld_bytes() > 0) dynamic_->add_free(planned_.take_withheld(wanted), request.stream);
  const bool taken = planned_.tracks_free_bytes() ? planned_.take(wanted, order_, request.stream)
                                                  : dynamic_->take_exactly(wanted, request.stream);
  if (!taken) return 0;
  const CUdeviceptr address = planned_.address(slot);
  live_.insert({address, request.bytes, slot, Origin::Plan, request.pool, request.stream});
  figures_.add_planned(request.bytes, request.pool);
  if (!pending_frees_.empty()) figures_.count_freed_in_use(pending_frees_.bytes());
  return address;
}

CUdeviceptr Heap::serve_dynamic(const Request& request, bool last_resort) {
  if (needs_bytes_of_plan(request)) merge(request.stream);
  const bool keeps = planned_.withheld_bytes() > 0;
  if (keeps && (last_resort || planned_.is_dropped() || dynamic_->largest_free() < rounded(request.bytes))) {
    dynamic_->add_free(planned_.take_withheld(), request.stream);
  }
  std::optional<Place> place;
  if (steps_ && last_resort) {
    steps_->yield_plan_bytes(*dynamic_);
  } else if (steps_ && request.pool != kNoPool && steps_->may_have_slot(rounded(request.bytes))) {
    place = serve_step(request);
  } else if (steps_) {
    steps_->keep_plan_bytes_from(*dynamic_, rounded(request.bytes));
  }
  if (!place && !pending_frees_.empty()) {
    place = dynamic_->allocate_mapped(rounded(request.bytes), request.stream);
    if (!place) collect_pending_frees(PendingFrees::kAllStreams);
  }
  if (!place) place = dynamic_->allocate(rounded(request.bytes), request.stream, last_resort);
  update_physical();
  return place ? note_dynamic(*place, request) : 0;
}

// Enters a request that the dynamic sub-allocator has served, and returns its address.
CUdeviceptr Heap::note_dynamic(Place place, const Request& request) {
  const CUdeviceptr address = dynamic_->address_of(place);
  live_.insert({address, request.bytes, place.view, Origin::Dynamic, request.pool, request.stream});
  figures_.add_dynamic(request.bytes, request.pool);
  if (!pending_frees_.empty()) figures_.count_freed_in_use(pending_frees_.bytes());
  if (dynamic_->is_of_plan(place)) figures_.count_borrow();
  return address;
}

// Serves a request at its place in the plan of the program's step, if there is one.
std::optional<Place> Heap::serve_step(const Request& request) noexcept {
  try {
    const std::uint64_t bytes = rounded(request.bytes);
    std::optional<Place> place = steps_->serve(*dynamic_, live_.last_number() + 1, bytes, request.stream);
    if (!place && steps_->was_refused() && collect_pending_frees(PendingFrees::kStreamsPerQuery)) {
      place = steps_->serve_again(*dynamic_, bytes, request.stream);
    }
    if (!place) place = steps_->serve_in_gap(*dynamic_, bytes, request.stream);
    return place;
  } catch (const std::bad_alloc&) {
    steps_->restart(*dynamic_);
    return std::nullopt;
  }
}

bool Heap::needs_bytes_of_plan(const Request& request) const {
  if (!planned_.tracks_free_bytes() || request.stream == kNoStream) return false;
  return planned_.is_dropped() || dynamic_->physical_bytes() + request.bytes > options_.max_bytes_beside_plan;
}

// From now on, the dynamic sub-allocator also tracks the plan's free bytes. Slots are still served if their bytes are
// free, but a planned request then costs as much as a dynamic one. So this is done only when dynamic requests need the
// bytes. Withheld bytes are used only when a dynamic request finds no other place.
void Heap::merge(StreamOrdinal stream) {
  try {
    Planned::FreeBytes free = planned_.free_bytes();
    dynamic_->adopt(planned_.arena());
    planned_.hand_over(std::move(free.withheld));
    dynamic_->add_free(free.usable, stream);
  } catch (const std::bad_alloc&) {
    // Either nothing has changed, or some free bytes are not used any more.
  }
}

}  // namespace stalloc::serve
