// SPDX-License-Identifier: Apache-2.0
// Creation and end of a heap, allocations, and frees. An allocation or a free takes the heap's lock once, unless memory
// is scarce or an event has to be recorded.
//
// An allocation:
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
//      (`Dynamic::take_exactly`). Otherwise, before the plan's body begins, `serve_spare` takes a slot of the request's
//      size that the plan never frees (`Planned::offer_spare`).
//   7. `serve_dynamic` serves a request that has no slot or whose slot is taken. It merges the plan's free bytes before
//      memory grows much beside them (`needs_bytes_of_plan`, `merge`). Without a plan, it takes the place that the
//      request has in the plan of the program's step, if there is one (`serve_step`). Otherwise it calls
//      `Dynamic::allocate`.
//   8. `serve_under_pressure` (heap_pressure.cpp) comes last, when the driver has no more memory.
//   9. CUDA serves every other request, and the caller reports that by `note_unplanned`.
//
// `allocate_sync` does the steps from 3 on, for all streams at once.
//
// A free:
//
//   1. `free_async` checks whether the stream is being captured, and takes the lock.
//   2. Fast path: without a plan, a free on the stream that was looked up last is deferred (`Dynamic::defer_free`).
//   3. Otherwise `free_slow_path` finds the stream's ordinal (`StreamOrder::ordinal`), removes the block from the live
//      table and the figures, and calls `make_reusable`. That marks the bytes with the stream and the number of the
//      free (`StreamOrder::mark_freed`) and adds them to the free bytes of the plan (`Planned::release`) or of the
//      dynamic sub-allocator (`Dynamic::add_free`, `Dynamic::free`).
//   4. If other streams cannot be ordered after the stream, `free_after_event` records an event, and
//      `collect_pending_frees` calls `make_reusable` when the event has completed. `free_when_complete` always does so.
//   5. `free_with_user` does what `free_slow_path` does, and then marks the bytes with both streams
//      (`StreamOrder::mark_also_used`).
//
// `free_sync` waits for the context without the lock (`FreeFence::wait`). The bytes are then free for every stream, and
// `release_freed_handles` returns their handles to the device.
#include "interpose/serve/heap/heap.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "interpose/serve/driver/clock.h"

namespace stalloc::serve {

// How the heap's physical offsets (physical.h) are divided: first the plan's, then the dynamic sub-allocator's. In
// bytes.
struct Heap::Offsets {
  std::uint64_t page = 0;
  std::uint64_t dynamic_page = 0;
  std::uint64_t dynamic_begin = 0;
  std::uint64_t bytes = 0;
  std::uint64_t device_bytes = 0;
};

namespace {

std::optional<CUdeviceptr> none_if_zero(CUdeviceptr address) {
  return address == 0 ? std::nullopt : std::optional(address);
}

}  // namespace

// --- creation and end ---

std::unique_ptr<Heap> Heap::create(Driver& driver, int device, const plan::DevicePlan* plan, CUcontext context,
                                   const HeapOptions& options, std::string* why, LogFunction log) noexcept {
  try {
    const auto begin = std::chrono::steady_clock::now();
    const bool places_any = plan != nullptr && plan->physical_bytes > 0;
    std::optional<Planned> planned = places_any ? Planned::create(driver, *plan, why) : Planned();
    if (!planned) return nullptr;
    const std::optional<Offsets> offsets = divide_offsets(driver, device, *planned, options.dynamic);
    if (!offsets) {
      *why = "the driver does not describe the device's memory";
      return nullptr;
    }
    std::unique_ptr<Heap> heap(new Heap(driver, device, context, options, std::move(*planned), *offsets, log));
    if (options.dynamic) {
      heap->dynamic_ =
          Dynamic::create(driver, device, options, offsets->dynamic_begin, offsets->dynamic_page, &heap->order_, why);
      if (!heap->dynamic_) return nullptr;
      const plan::OnlinePolicy& policy = options.policy;
      const bool plans_steps = policy.stitch && policy.planned_repetitions < plan::kNeverRepeated;
      if (plans_steps && !heap->planned_.exists() && options.cross_stream == CrossStream::Share) {
        heap->steps_.emplace(*heap->dynamic_);
      }
    }
    heap->mapping_calls_at_start_ = heap->mapping_calls();
    heap->mapping_ns_at_start_ = nanoseconds_since(begin);
    heap->update_physical();
    return heap;
  } catch (const std::exception&) {
    *why = "not enough host memory for the plan";
    return nullptr;
  }
}

std::optional<Heap::Offsets> Heap::divide_offsets(Driver& driver, int device, const Planned& planned, bool dynamic) {
  Offsets offsets;
  offsets.page = planned.page();
  offsets.bytes = planned.planned_bytes();
  std::size_t free = 0;
  std::size_t total = 0;
  if (driver.memory_info(&free, &total) != CUDA_SUCCESS) return std::nullopt;
  offsets.device_bytes = total;
  if (!dynamic) return offsets;
  std::size_t page = 0;
  if (driver.granularity(device, &page) != CUDA_SUCCESS || page < plan::kUnitBytes || (page & (page - 1)) != 0) {
    return std::nullopt;
  }
  offsets.page = std::max<std::uint64_t>(offsets.page, page);
  offsets.dynamic_page = page;
  offsets.dynamic_begin = plan::round_up(offsets.bytes, offsets.page) + offsets.page;  // no range spans the boundary
  offsets.bytes = plan::round_up(offsets.dynamic_begin + Dynamic::offset_bytes(total, page), offsets.page);
  return offsets;
}

Heap::Heap(Driver& driver, int device, CUcontext context, const HeapOptions& options, Planned planned,
           const Offsets& offsets, LogFunction log)
    : driver_(driver),
      device_bytes_(offsets.device_bytes),
      device_(device),
      context_(context),
      log_(log),
      planned_(std::move(planned)),
      options_(options),
      fence_(driver, context),
      order_(driver, context, offsets.bytes, offsets.page, options.events),
      pending_frees_(driver, device, context, options.on_free_complete) {}

Heap::~Heap() {
  if (!close()) close_after_context();
  dynamic_.reset();  // before order_, which it refers to; the order of the members is chosen for the cache
}

// A thread that waits without the lock finds the heap closed when it has the lock again.
void Heap::stop_serving() noexcept {
  const CompletingLock lock(*this);
  closed_.store(true, std::memory_order_release);
  live_.clear();
  unplanned_.clear();
  if (published_ != nullptr) PublishedFigures::set(&published_->live, 0);
}

bool Heap::close() noexcept {
  stop_serving();
  const ContextScope scope(driver_, context_);
  if (!scope.ok() || driver_.synchronize_context() != CUDA_SUCCESS) return false;  // memory in use cannot be unmapped
  const PlainLock lock(mutex_);
  release_all(true);
  return true;
}

void Heap::close_after_context() noexcept {
  stop_serving();
  const PlainLock lock(mutex_);
  release_all(false);
}

void Heap::release_all(bool context_lives) noexcept {
  pending_frees_.clear(context_lives);
  fence_.close(context_lives);
  if (dynamic_) dynamic_->close();
  planned_.close();
  order_.close(context_lives);
  update_physical();
}

// --- the planner of steps ---

// Tells the planner of steps of a request that was just inserted in the live table.
[[gnu::always_inline]] inline void Heap::note_served(std::size_t bytes, StreamOrdinal stream) noexcept {
  try {
    steps_->served(*dynamic_, live_.last_number(), rounded(bytes), stream);
  } catch (const std::bad_alloc&) {
    steps_->restart(*dynamic_);
  }
}

// Tells it of a free on `stream`; kNoStream: no work uses the bytes any more.
[[gnu::always_inline]] inline void Heap::note_freed(const LiveEntry& entry, StreamOrdinal stream) noexcept {
  if (entry.pool == kNoPool) return;
  try {
    steps_->freed(entry.number, stream);
  } catch (const std::bad_alloc&) {
    steps_->restart(*dynamic_);
  }
}

// --- allocations ---

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
  lock.unlock();
  if (planned_step) [[unlikely]]
    log_planned_step(*planned_step);
  if (dropped_now) [[unlikely]]
    log_dropped_plan();
  if (served != 0) return served;
  if (!admitted || !dynamic_) return 0;
  served = serve_under_pressure(stream, pool, request);
  if (served == 0 && exhausted != nullptr) *exhausted = true;
  return served;
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
  char text[256];
  std::snprintf(text, sizeof text,
                "the plan does not fit this program and is no longer used (was it made from another run?)%s", where);
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
  if (address == 0) figures_.count_refused_slot();
  return address;
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
  if (!place) return 0;
  const CUdeviceptr address = dynamic_->address_of(*place);
  live_.insert({address, request.bytes, place->view, Origin::Dynamic, request.pool, request.stream});
  figures_.add_dynamic(request.bytes, request.pool);
  if (!pending_frees_.empty()) figures_.count_freed_in_use(pending_frees_.bytes());
  if (dynamic_->is_of_plan(*place)) figures_.count_borrow();
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
    if (!place) place = steps_->serve_elsewhere(*dynamic_, bytes, request.stream);
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
    Planned::FreeBytes free = planned_.hand_over();
    dynamic_->adopt(planned_.arena());
    dynamic_->add_free(free.handed_over, stream);
    planned_.withhold(std::move(free.withheld));
  } catch (const std::bad_alloc&) {
    // Bytes that were not handed over are not used any more.
  }
}

// --- frees ---

// Removes a live range from the table and the figures. False: none starts at `address`. Inlined, since every free that
// is not deferred calls it.
[[gnu::always_inline]] inline bool Heap::remove_live(CUdeviceptr address, LiveEntry* entry) noexcept {
  if (!live_.erase(address, entry)) return false;
  if (entry->origin == Origin::Plan) {
    figures_.remove_planned(entry->bytes, entry->pool);
  } else {
    figures_.remove_dynamic(entry->bytes, entry->pool);
  }
  return true;
}

CUresult Heap::free_async(CUdeviceptr address, StreamKey stream, bool context_is_current) noexcept {
  bool capturing = false;
  if (const CUresult result = driver_.is_capturing(stream.handle, &capturing); result != CUDA_SUCCESS) return result;
  if (capturing) return CUDA_ERROR_INVALID_VALUE;
  std::unique_lock lock(mutex_);
  // The free is deferred only if the stream was looked up last: another look-up could assign its ordinal to another
  // stream before the free is completed. A free on a thread's own stream is not deferred, since its event must be
  // recorded by this thread.
  const bool known = context_is_current || !stream.is_default();
  const StreamOrdinal ordinal = known && !planned_.exists() ? order_.latest_ordinal(stream) : kNoStream;
  if (ordinal == kNoStream || stream.is_per_thread()) [[unlikely]] {
    return free_slow_path(std::move(lock), address, stream, context_is_current);
  }
  LiveEntry entry;
  if (!live_.erase(address, &entry)) return CUDA_ERROR_INVALID_VALUE;
  figures_.remove_dynamic(entry.bytes, entry.pool);
  const std::uint64_t bytes = rounded(entry.bytes);
  try {
    if (steps_ && steps_->may_have_slot(bytes)) note_freed(entry, ordinal);
    if (steps_ && steps_->takes_each_request_of(bytes)) {
      complete_deferred_free();
      dynamic_->free({entry.address, entry.place}, bytes, ordinal);
    } else {
      dynamic_->defer_free({entry.address, entry.place}, bytes, ordinal);
    }
  } catch (const std::bad_alloc&) {
    // The bytes stay unused for good.
  }
  return CUDA_SUCCESS;
}

void Heap::complete_deferred_free_now() noexcept {
  try {
    dynamic_->complete_deferred_free();
  } catch (const std::bad_alloc&) {
    // The bytes stay unused for good.
  }
}

[[gnu::noinline]] CUresult Heap::free_slow_path(std::unique_lock<HeapMutex> lock, CUdeviceptr address, StreamKey stream,
                                                bool context_is_current) noexcept {
  complete_deferred_free();
  if (const StreamOrdinal ordinal = order_.ordinal(stream, context_is_current); ordinal != kNoStream) {
    LiveEntry entry;
    if (!remove_live(address, &entry)) return CUDA_ERROR_INVALID_VALUE;
    make_reusable(entry, ordinal);
    return CUDA_SUCCESS;
  }
  return free_after_event(std::move(lock), address, stream, std::nullopt);
}

CUresult Heap::free_with_user(CUdeviceptr address, StreamKey stream, StreamKey user) noexcept {
  bool capturing = false;
  if (const CUresult result = driver_.is_capturing(stream.handle, &capturing); result != CUDA_SUCCESS) return result;
  if (capturing) return CUDA_ERROR_INVALID_VALUE;
  std::unique_lock lock(mutex_);
  complete_deferred_free();
  if (stream == user) return free_slow_path(std::move(lock), address, stream, true);
  const StreamOrdinal user_ordinal = order_.ordinal_of_user(user, true);
  const StreamOrdinal ordinal = order_.ordinal(stream, true);
  // The second look-up may have assigned the first one's ordinal to its own stream.
  if (ordinal == kNoStream || user_ordinal == kNoStream || ordinal == user_ordinal) return CUDA_ERROR_NOT_SUPPORTED;
  LiveEntry entry;
  if (!remove_live(address, &entry)) return CUDA_ERROR_INVALID_VALUE;
  try {
    const PhysicalRanges freed = ranges(entry);
    const std::vector<PhysicalRange> used(freed.begin(), freed.end());  // a copy: the free may remove the view
    make_reusable(entry, ordinal);
    order_.mark_also_used(used, ordinal, user_ordinal);
  } catch (const std::bad_alloc&) {
    // The bytes stay unused for good.
  }
  return CUDA_SUCCESS;
}

CUresult Heap::free_when_complete(CUdeviceptr address, StreamKey stream, StreamKey owner) noexcept {
  std::unique_lock lock(mutex_);
  return free_after_event(std::move(lock), address, stream, owner);
}

// Frees a block on a stream that other streams cannot be ordered after (it belongs to another context, or there are too
// many streams) or should not wait for. The bytes can be used again when an event that is recorded now has completed.
// Releases the lock while it records the event. Without an `owner` the callback is not called.
CUresult Heap::free_after_event(std::unique_lock<HeapMutex> lock, CUdeviceptr address, StreamKey stream,
                                std::optional<StreamKey> owner) noexcept {
  if (live_.find(address) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  lock.unlock();
  PendingFrees::Free free;
  free.owner = owner;
  CUcontext context = nullptr;
  CUresult result = pending_frees_.record_event(stream, &context, &free.event);
  if (result != CUDA_SUCCESS) return result;
  lock.lock();
  complete_deferred_free();
  if (owner) free.preferred = order_.ordinal(*owner);
  if (remove_live(address, &free.entry)) {
    try {
      pending_frees_.add(context, stream, free);
      return CUDA_SUCCESS;
    } catch (const std::bad_alloc&) {
      // The bytes are not used any more.
    }
  } else {
    result = CUDA_ERROR_INVALID_VALUE;
  }
  lock.unlock();
  driver_.destroy_event(free.event);
  return result;
}

// Makes the blocks reusable whose events have completed. False if there are none. Not inlined, so that the code of
// requests without pending frees stays short.
[[gnu::noinline]] bool Heap::collect_pending_frees(std::size_t max_streams) {
  return pending_frees_.collect(
      max_streams, [&](const PendingFrees::Free& free) { make_reusable(free.entry, kNoStream, free.preferred); });
}

bool Heap::wait_for_pending_frees() noexcept {
  constexpr std::chrono::microseconds kBetweenQueries(20);  // short compared with the work that is waited for
  std::optional<std::uint64_t> latest_number;
  bool any = false;
  for (;;) {
    {
      const CompletingLock lock(*this);
      if (!latest_number) latest_number = pending_frees_.latest_number();
      any |= collect_pending_frees(PendingFrees::kAllStreams);
      if (!pending_frees_.may_complete(*latest_number)) return any;
    }
    std::this_thread::sleep_for(kBetweenQueries);
  }
}

void Heap::before_context_end(CUcontext context) noexcept {
  const PlainLock lock(mutex_);
  pending_frees_.before_context_end(context);
}

void Heap::after_context_end(CUcontext context, bool ended) noexcept {
  const PlainLock lock(mutex_);
  pending_frees_.after_context_end(context, ended);
}

void Heap::notify_pending_frees_at_exit() noexcept {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock()) pending_frees_.notify_all();
}

CUresult Heap::free_sync(CUdeviceptr address) noexcept {
  std::uint64_t number = 0;
  bool from_pool = false;
  {
    const PlainLock lock(mutex_);
    const LiveEntry* entry = live_.find(address);
    if (entry == nullptr) return CUDA_ERROR_INVALID_VALUE;
    from_pool = entry->pool != kNoPool;
    if (!from_pool) number = order_.take_number();
  }
  if (!from_pool) {
    // Called without the lock: the work that is waited for may depend on another thread's request.
    if (const CUresult result = fence_.wait(); result != CUDA_SUCCESS) return result;
  }
  const CompletingLock lock(*this);
  LiveEntry entry;
  if (!remove_live(address, &entry)) return CUDA_ERROR_INVALID_VALUE;
  if (!from_pool) order_.mark_all_complete(number);
  // For a block from a pool, the program's own work is complete. Work on the bytes from before the allocation may not
  // be, but the block's stream is ordered after that.
  make_reusable(entry, from_pool ? entry.stream : kNoStream);
  if (!from_pool) release_freed_handles(entry);
  return CUDA_SUCCESS;
}

// Returns memory that cudaFree has freed to the device; if a release threshold is set, only down to that.
void Heap::release_freed_handles(const LiveEntry& entry) {
  if (entry.origin != Origin::Dynamic) return;
  const std::uint64_t keep = release_threshold_.load(std::memory_order_relaxed);
  try {
    if (keep != ~std::uint64_t{0}) {
      if (figures_.physical() > keep) release_idle(keep);
      return;
    }
    const PhysicalRanges freed = ranges(entry);
    const std::vector<PhysicalRange> handles(freed.begin(), freed.end());  // a copy: the release may remove the view
    dynamic_->memory().release_handles(handles, entry.place);
    update_physical();
  } catch (const std::bad_alloc&) {
    // The memory is kept.
  }
}

// The result is valid until the next call.
PhysicalRanges Heap::ranges(const LiveEntry& entry) {
  switch (entry.origin) {
    case Origin::Plan:
      return planned_.ranges(entry.place);
    case Origin::Dynamic:
      return dynamic_->ranges(dynamic_->place({entry.address, entry.place}), rounded(entry.bytes));
    case Origin::Original:
      break;
  }
  return {};
}

// Makes the bytes of a block reusable, ordered after the work of `stream`; kNoStream: no work uses them any more.
// Requests on the stream `preferred` get them first.
void Heap::make_reusable(const LiveEntry& entry, StreamOrdinal stream, StreamOrdinal preferred) {
  try {
    if (entry.origin == Origin::Dynamic) {
      if (steps_ && steps_->may_have_slot(rounded(entry.bytes))) note_freed(entry, stream);
      dynamic_->free({entry.address, entry.place}, rounded(entry.bytes), stream, preferred);
      return;
    }
    const PhysicalRanges freed = ranges(entry);
    if (stream == kNoStream) {
      order_.clear_marks(freed);
    } else {
      const bool merged = !planned_.tracks_free_bytes();  // true: other streams may get the bytes
      const std::uint64_t number =
          order_.assign_free_number(stream, merged && options_.cross_stream != CrossStream::Never);
      order_.mark_freed(freed, stream, number, planned_.event_on_free(entry.place));
    }
    if (planned_.tracks_free_bytes()) {
      planned_.release(freed);
    } else {
      dynamic_->add_free(freed, preferred);
    }
  } catch (const std::bad_alloc&) {
    // The bytes stay unused for good.
  }
}

// --- requests that CUDA served ---

void Heap::note_unplanned(CUdeviceptr address, std::size_t bytes, CUmemoryPool pool) noexcept {
  const CompletingLock lock(*this);
  note(address, bytes, figures_.pool_index(pool));
}

void Heap::note_unplanned_sync(CUdeviceptr address, std::size_t bytes) noexcept {
  const CompletingLock lock(*this);
  note(address, bytes, kNoPool);
}

void Heap::note(CUdeviceptr address, std::size_t bytes, PoolIndex pool) noexcept {
  LiveEntry missed;  // a range at the same address whose free was not observed
  if (unplanned_.erase(address, &missed)) figures_.remove_unplanned(missed.bytes, missed.pool);
  if (address == 0 || !unplanned_.reserve_one()) return;
  unplanned_.insert({address, bytes, 0, Origin::Original, pool, kNoStream});
  figures_.add_unplanned(bytes, pool);
}

std::uint64_t Heap::find_unplanned(CUdeviceptr address) const noexcept {
  const PlainLock lock(mutex_);
  const LiveEntry* entry = unplanned_.find(address);
  return entry == nullptr ? 0 : entry->number;
}

void Heap::note_original_freed(CUdeviceptr address, std::uint64_t number) noexcept {
  const CompletingLock lock(*this);
  const LiveEntry* noted = unplanned_.find(address);
  if (noted == nullptr || noted->number != number) return;
  LiveEntry entry;
  if (unplanned_.erase(address, &entry)) figures_.remove_unplanned(entry.bytes, entry.pool);
}

// --- live ranges and figures ---

std::optional<LiveRange> Heap::find_live(CUdeviceptr address) noexcept {
  const PlainLock lock(mutex_);
  const LiveEntry* entry = live_.find_holding(address);
  if (entry == nullptr) return std::nullopt;
  const bool from_pool = entry->pool != kNoPool;
  return LiveRange{
      entry->address,    entry->bytes, entry->number, from_pool, from_pool ? figures_.pool(entry->pool) : nullptr,
      entry->sync_memops};
}

void Heap::set_sync_memops(CUdeviceptr address, bool set) noexcept {
  const PlainLock lock(mutex_);
  if (const LiveEntry* entry = live_.find_holding(address)) live_.set_sync_memops(entry->address, set);
}

void Heap::stream_destroyed(CUstream stream) noexcept {
  const CompletingLock lock(*this);
  order_.stream_destroyed(stream);
}

StreamClock* Heap::clock(StreamKey stream) noexcept {
  const PlainLock lock(mutex_);
  return is_closed() ? nullptr : order_.clock(stream);
}

CUresult Heap::grant_access(int peer) noexcept {
  const CompletingLock lock(*this);
  if (is_closed()) return CUDA_SUCCESS;
  const CUresult to_plan = planned_.grant_access(peer);
  const CUresult to_dynamic = dynamic_ ? dynamic_->grant_access(peer) : CUDA_SUCCESS;
  return to_plan != CUDA_SUCCESS ? to_plan : to_dynamic;
}

void Heap::update_physical() noexcept {
  const std::uint64_t physical = planned_.physical_bytes() + (dynamic_ ? dynamic_->physical_bytes() : 0);
  if (physical != figures_.physical()) figures_.set_physical(physical);
  held_bytes_.store(physical, std::memory_order_relaxed);
  if (dynamic_) {
    const plan::Range small = dynamic_->offsets_for_small();
    held_for_small_.store(dynamic_->bytes_for_small(), std::memory_order_relaxed);
    small_begin_.store(dynamic_->home(small.begin), std::memory_order_relaxed);
    small_end_.store(dynamic_->home(small.begin) + small.bytes(), std::memory_order_relaxed);
  }
  if (published_ != nullptr) {
    PublishedFigures::set(&published_->mapping_calls_after_start, mapping_calls() - mapping_calls_at_start_);
  }
}

void Heap::publish_in(PublishedFigures* published) noexcept {
  const CompletingLock lock(*this);
  published_ = published;
  PublishedFigures::set(&published->mapping_calls_at_start, mapping_calls_at_start_);
  figures_.publish_in(published);
  update_physical();
}

PoolUse Heap::pool_use(CUmemoryPool pool) const noexcept {
  const PlainLock lock(mutex_);
  return figures_.pool_use(pool);
}

void Heap::reset_pool_high(CUmemoryPool pool, bool used, bool reserved) noexcept {
  const CompletingLock lock(*this);
  figures_.reset_pool_high(pool, used, reserved);
}

void Heap::pool_destroyed(CUmemoryPool pool) noexcept {
  const CompletingLock lock(*this);
  figures_.pool_destroyed(pool);
  update_release_threshold();
}

void Heap::set_release_threshold(CUmemoryPool pool, std::uint64_t bytes) noexcept {
  const PlainLock lock(mutex_);
  figures_.set_release_threshold(pool, bytes);
  update_release_threshold();
}

void Heap::keep_idle_memory() noexcept {
  const PlainLock lock(mutex_);
  keeps_idle_memory_ = true;
  update_release_threshold();
}

void Heap::update_release_threshold() noexcept {
  release_threshold_.store(keeps_idle_memory_ ? ~std::uint64_t{0} : figures_.release_threshold(),
                           std::memory_order_relaxed);
}

std::uint64_t Heap::mapping_calls() const noexcept {
  return planned_.mapping_calls() + (dynamic_ ? dynamic_->mapper().calls() : 0);
}

Statistics Heap::statistics() const noexcept {
  const PlainLock lock(mutex_);
  return gather_statistics();
}

bool Heap::try_statistics(Statistics* statistics) const noexcept {
  const std::unique_lock look(mutex_, std::try_to_lock);
  if (look.owns_lock()) *statistics = gather_statistics();
  return look.owns_lock();
}

Statistics Heap::gather_statistics() const noexcept {
  Statistics statistics = figures_.statistics();
  statistics.resynchronisations = planned_.resynchronisations();
  statistics.waits = order_.waits();
  statistics.spared_waits = order_.spared_waits();
  statistics.mapping_calls_at_start = mapping_calls_at_start_;
  statistics.mapping_calls_after_start = mapping_calls() - mapping_calls_at_start_;
  statistics.mapping_ns_at_start = mapping_ns_at_start_;
  if (dynamic_) {
    const Dynamic::Counts& counts = dynamic_->counts();
    statistics.mapping_ns_after_start = dynamic_->mapper().nanoseconds();
    statistics.stitches = counts.views + counts.repaired;
    statistics.view_hits = counts.view_hits;
    statistics.grows = counts.grows;
    statistics.borrows += counts.borrows;
    if (steps_) statistics.step_plans = steps_->plans();
    if (steps_) statistics.step_requests = steps_->requests_in_slots();
    statistics.views = dynamic_->views();
  }
  return statistics;
}

}  // namespace stalloc::serve
