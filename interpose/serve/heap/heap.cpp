// SPDX-License-Identifier: Apache-2.0
// A heap's life, and the way of an allocation and of a free. Each takes the heap's lock once, unless memory is scarce.
//
// An allocation:
//
//   1. `allocate` asks whether the stream is being captured, and takes the lock.
//   2. Fast path: programs make tensors and drop them at once, over and over. So where there is no plan, the latest
//      free is deferred, and a request of its size on its stream has the block back as it was
//      (`Dynamic::deferred_serves`, `reuse_deferred`).
//   3. Everything else goes through `allocate_slow_path` to `serve`, which first makes known what is free:
//      `complete_deferred_free`, and `poll_pending_frees` for what waited for an event.
//   4. A captured request belongs to its graph: `Planned::pass_through` moves the cursor, and CUDA serves it.
//   5. `Planned::next` names the slot that the plan has for the request, if any. `admit` finds the indices of stream
//      and pool, and room in the table of what is live; where it fails, CUDA serves the request.
//   6. `serve_slot` takes exactly the slot's bytes, if all are free and can be ordered on the stream: from the plan's
//      free bytes (`Planned::take`), or from the dynamic sub-allocator's once both were merged
//      (`Dynamic::take_exactly`). Else, before the plan's body begins, `serve_spare` takes a slot of the request's size
//      that the plan never frees (`Planned::offer_spare`).
//   7. `serve_dynamic` serves what has no slot, or whose slot is taken. It merges the plan's free bytes before memory
//      grows much beside them (`needs_bytes_of_plan`, `merge`), and asks `Dynamic::allocate`.
//   8. `serve_under_pressure` (heap_pressure.cpp) is tried last, when the driver gives no more memory.
//   9. What is not served is answered by CUDA, and the caller reports that by `note_unplanned`.
//
// `allocate_sync` has the steps from 3 on, for all streams at once.
//
// A free:
//
//   1. `free_async` asks whether the stream is being captured, and takes the lock.
//   2. Fast path: without a plan, and on the stream that was looked up last, the free is deferred
//      (`Dynamic::defer_free`).
//   3. Else `free_slow_path` finds the stream's index (`StreamOrder::ordinal`), takes the block out of the table of
//      what is live, and calls `count_free` for the figures and `make_reusable` for the bytes. `make_reusable` marks
//      them with the stream and the number of the free (`StreamOrder::mark_freed`). Then they are among the plan's free
//      bytes (`Planned::release`) or the dynamic sub-allocator's (`Dynamic::add_free`, `Dynamic::free`).
//   4. Where others cannot be ordered behind the stream, `free_after_event` records an event, and `make_reusable`
//   follows
//      when `collect_pending_frees` finds the event over. `free_when_complete` asks for that.
//   5. `free_with_user` does what `free_slow_path` does, for a block that another stream may still work on, and then
//   has the
//      bytes marked with both streams (`StreamOrder::mark_also_used`).
//
// `free_sync` waits for the context without the lock (`FreeFence::wait`); the bytes are then free for every stream, and
// `release_freed_handles` gives their handles back to the device.
#include "interpose/serve/heap/heap.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace stalloc::serve {

// How the heap's physical offsets (physical.h) are divided: the plan's first, the dynamic sub-allocator's behind them.
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

std::uint64_t nanoseconds_since(std::chrono::steady_clock::time_point begin) {
  const auto passed = std::chrono::steady_clock::now() - begin;
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count());
}

}  // namespace

// --- the beginning and the end ---

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
      pending_frees_(driver) {}

Heap::~Heap() {
  if (!close()) close_after_context();
  dynamic_.reset();  // before order_, which it knows: both are declared in the order that the cache wants
}

// A thread that waits without the lock finds the heap closed when it takes the lock again.
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
  if (!scope.ok() || driver_.synchronize_context() != CUDA_SUCCESS) return false;  // unmapping asks for it
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
  pending_frees_.for_each([&](PendingFrees::Free& free) { notify_complete(free); });
  pending_frees_.clear(context_, context_lives);
  fence_.close(context_lives);
  if (dynamic_) dynamic_->close();
  planned_.close();
  order_.close(context_lives);
  update_physical();
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
      {block.address, bytes, block.view, Origin::Dynamic, index, order_.latest_ordinal(stream)});  // it had room before
  figures_.add_dynamic(bytes, index);
  return block.address;
}

std::optional<CUdeviceptr> Heap::allocate_sync(std::size_t bytes) noexcept {
  // The free of this block will wait as CUDA's own does, which the fence must be prepared for.
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

// `stream` null: for all streams at once.
CUdeviceptr Heap::serve(std::unique_lock<HeapMutex> lock, std::size_t bytes, const StreamKey* stream, CUmemoryPool pool,
                        bool capturing, bool* exhausted) {
  if (bytes == 0 || is_closed() || refuses()) return 0;
  complete_deferred_free();
  poll_pending_frees();
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
  lock.unlock();
  if (dropped_now) [[unlikely]]
    log_dropped_plan();
  if (served != 0) return served;
  if (!admitted || !dynamic_) return 0;
  served = serve_under_pressure(stream, pool, request);
  if (served == 0 && exhausted != nullptr) *exhausted = true;
  return served;
}

// Without the lock: a plan that is dropped stays so, and with it the first difference.
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
  log_(text);
}

// False when the request cannot be tracked: a stream of another context, too many streams or pools, no host memory.
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
  if (address == 0 && collect_pending_frees()) address = take_slot(slot, request);
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

// 0: its bytes are taken, or cannot be ordered on the request's stream.
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
  if (!pending_frees_.empty()) {
    place = dynamic_->allocate_mapped(rounded(request.bytes), request.stream);
    if (!place) collect_pending_frees(kAllStreams);
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

bool Heap::needs_bytes_of_plan(const Request& request) const {
  if (!planned_.tracks_free_bytes() || request.stream == kNoStream) return false;
  return planned_.is_dropped() || dynamic_->physical_bytes() + request.bytes > options_.max_bytes_beside_plan;
}

// From now on the dynamic sub-allocator tracks the plan's free bytes as well. Slots are still served where their bytes
// are free, but at the cost of dynamic requests, so this is done only when dynamic requests need the bytes. What the
// plan keeps back then serves them as soon as they find no other room.
void Heap::merge(StreamOrdinal stream) {
  try {
    Planned::FreeBytes free = planned_.hand_over();
    dynamic_->adopt(planned_.arena());
    dynamic_->add_free(free.handed_over, stream);
    planned_.withhold(std::move(free.withheld));
  } catch (const std::bad_alloc&) {
    // Bytes that were not handed over stay unused.
  }
}

// --- frees ---

CUresult Heap::free_async(CUdeviceptr address, StreamKey stream, bool context_is_current) noexcept {
  bool capturing = false;
  if (const CUresult result = driver_.is_capturing(stream.handle, &capturing); result != CUDA_SUCCESS) return result;
  if (capturing) return CUDA_ERROR_INVALID_VALUE;
  std::unique_lock lock(mutex_);
  // What is asked of the order between streams must not give the ordinal of a deferred free to another stream, and the
  // event of a free on a thread's own stream is recorded at once.
  const bool known = context_is_current || !stream.is_default();
  const StreamOrdinal ordinal = known && !planned_.exists() ? order_.latest_ordinal(stream) : kNoStream;
  if (ordinal == kNoStream || stream.is_per_thread()) [[unlikely]] {
    return free_slow_path(std::move(lock), address, stream, context_is_current);
  }
  LiveEntry entry;
  if (!live_.erase(address, &entry)) return CUDA_ERROR_INVALID_VALUE;
  figures_.remove_dynamic(entry.bytes, entry.pool);
  try {
    dynamic_->defer_free({entry.address, entry.place}, rounded(entry.bytes), ordinal);
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
    if (!live_.erase(address, &entry)) return CUDA_ERROR_INVALID_VALUE;
    count_free(entry);
    make_reusable(entry, ordinal);
    return CUDA_SUCCESS;
  }
  if (live_.find(address) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  lock.unlock();
  return free_after_event(address, stream, std::nullopt);
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
  // The second look-up may have given the first one's ordinal away.
  if (ordinal == kNoStream || user_ordinal == kNoStream || ordinal == user_ordinal) return CUDA_ERROR_NOT_SUPPORTED;
  LiveEntry entry;
  if (!live_.erase(address, &entry)) return CUDA_ERROR_INVALID_VALUE;
  count_free(entry);
  try {
    const PhysicalRanges freed = ranges(entry);
    const std::vector<PhysicalRange> used(freed.begin(), freed.end());  // they outlive the view
    make_reusable(entry, ordinal);
    order_.mark_also_used(used, ordinal, user_ordinal);
  } catch (const std::bad_alloc&) {
    // The bytes stay unused for good.
  }
  return CUDA_SUCCESS;
}

CUresult Heap::free_when_complete(CUdeviceptr address, StreamKey stream, StreamKey owner) noexcept {
  {
    const CompletingLock lock(*this);
    if (live_.find(address) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  }
  return free_after_event(address, stream, owner);
}

// For a stream that others cannot be ordered behind (of another context, or one too many), or should not wait for. An
// event behind the free tells when the bytes can be used again.
CUresult Heap::free_after_event(CUdeviceptr address, StreamKey stream, std::optional<StreamKey> owner) noexcept {
  PendingFrees::Free free;
  free.owner = owner;
  CUcontext context = nullptr;
  CUresult result = record_event_on(stream, &context, &free.event);
  if (result != CUDA_SUCCESS) return result;
  {
    const CompletingLock lock(*this);
    if (owner) free.preferred = order_.ordinal(*owner);
    if (live_.erase(address, &free.entry)) {
      count_free(free.entry);
      try {
        pending_frees_.add(context, stream, free);
        return CUDA_SUCCESS;
      } catch (const std::bad_alloc&) {
        // The bytes stay taken for good.
      }
    } else {
      result = CUDA_ERROR_INVALID_VALUE;
    }
  }
  driver_.destroy_event(free.event);
  return result;
}

// Records an event on `stream`; `context` is the one that the event is of. The streams of a green context accept events
// of its primary context: these are still there when the green context has been destroyed, while its work may go on. So
// the heap's context is tried before the stream's own.
CUresult Heap::record_event_on(StreamKey stream, CUcontext* context, CUevent* event) noexcept {
  CUcontext of_stream = nullptr;
  CUresult result = driver_.stream_context(stream.handle, &of_stream);
  if (result != CUDA_SUCCESS) return result;
  const ContextScope scope(driver_, of_stream);  // by its name, a default stream is the current context's
  if (!scope.ok()) return CUDA_ERROR_INVALID_CONTEXT;
  for (const CUcontext each : {context_, of_stream}) {
    result = create_event(each, event);
    if (result == CUDA_SUCCESS) {
      *context = each;
      result = driver_.record_event(*event, stream.handle);
      if (result == CUDA_SUCCESS) return result;
      driver_.destroy_event(*event);
    }
    if (each == of_stream) break;
  }
  return result;
}

CUresult Heap::create_event(CUcontext context, CUevent* event) noexcept {
  const ContextScope scope(driver_, context);
  return scope.ok() ? driver_.create_event(event) : CUDA_ERROR_INVALID_CONTEXT;
}

// Collects them at every so many requests, since a query costs as much as a request, and at the first one after the
// program has synchronised, since it may count on what it knows to be over. A request that would map memory, or that
// finds its slot taken, collects them in any case.
void Heap::poll_pending_frees() {
  constexpr std::uint32_t kRequestsBetween = 16;
  if (pending_frees_.empty()) return;
  const bool synchronized = synchronized_.exchange(false, std::memory_order_relaxed);
  if (!synchronized && requests_until_poll_-- > 0) return;
  requests_until_poll_ = kRequestsBetween - 1;
  collect_pending_frees(synchronized ? kAllStreams : kStreamsPerPoll);
}

// Gives back the blocks whose events have completed; false when there are none.
bool Heap::collect_pending_frees(std::size_t max_streams) {
  return pending_frees_.collect(max_streams, [&](PendingFrees::Free& free) {
    notify_complete(free);
    make_reusable(free.entry, kNoStream, free.preferred);
  });
}

bool Heap::wait_for_pending_frees() noexcept {
  constexpr std::chrono::microseconds kBetweenQueries(20);  // short beside the work that is waited for
  std::optional<std::uint64_t> latest_number;
  bool any = false;
  for (;;) {
    {
      const CompletingLock lock(*this);
      if (!latest_number) latest_number = pending_frees_.latest_number();
      any |= collect_pending_frees(kAllStreams);
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

// Calls the function at most once for each free.
void Heap::notify_complete(PendingFrees::Free& free) const noexcept {
  if (options_.on_free_complete != nullptr && free.owner)
    options_.on_free_complete(device_, free.entry.address, *free.owner);
  free.owner.reset();
}

void Heap::notify_pending_frees_at_exit() noexcept {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  pending_frees_.for_each([&](PendingFrees::Free& free) { notify_complete(free); });
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
    // Without the lock: the work that is waited for may itself wait for another thread's request.
    if (const CUresult result = fence_.wait(); result != CUDA_SUCCESS) return result;
  }
  const CompletingLock lock(*this);
  LiveEntry entry;
  if (!live_.erase(address, &entry)) return CUDA_ERROR_INVALID_VALUE;
  count_free(entry);
  if (!from_pool) order_.mark_all_complete(number);
  // The program is done with a block of a pool, but who had the bytes before may not be: its stream is behind that.
  make_reusable(entry, from_pool ? entry.stream : kNoStream);
  if (!from_pool) release_freed_handles(entry);
  return CUDA_SUCCESS;
}

// Memory of cudaFree goes back to the device, whatever a pool may keep.
void Heap::release_freed_handles(const LiveEntry& entry) {
  if (entry.origin != Origin::Dynamic) return;
  const std::uint64_t keep = release_threshold_.load(std::memory_order_relaxed);
  try {
    if (keep != ~std::uint64_t{0}) {
      if (figures_.physical() > keep) release_idle(keep);
      return;
    }
    const PhysicalRanges freed = ranges(entry);
    const std::vector<PhysicalRange> handles(freed.begin(), freed.end());  // they outlive the view
    dynamic_->release_handles(handles, entry.place);
    update_physical();
  } catch (const std::bad_alloc&) {
    // It is kept.
  }
}

void Heap::count_free(const LiveEntry& entry) {
  if (entry.origin == Origin::Plan) {
    figures_.remove_planned(entry.bytes, entry.pool);
  } else {
    figures_.remove_dynamic(entry.bytes, entry.pool);
  }
}

// Valid until the next call.
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

// The bytes are free, behind the work of `stream`; kNoStream: the device is done with them.
void Heap::make_reusable(const LiveEntry& entry, StreamOrdinal stream, StreamOrdinal preferred) {
  try {
    if (entry.origin == Origin::Dynamic) {
      dynamic_->free({entry.address, entry.place}, rounded(entry.bytes), stream, preferred);
      return;
    }
    const PhysicalRanges freed = ranges(entry);
    if (stream == kNoStream) {
      order_.clear_marks(freed);
    } else {
      const bool merged = !planned_.tracks_free_bytes();  // then other streams may get the bytes
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

// --- what CUDA served ---

void Heap::note_unplanned(CUdeviceptr address, std::size_t bytes, CUmemoryPool pool) noexcept {
  const CompletingLock lock(*this);
  note(address, bytes, figures_.pool_index(pool));
}

void Heap::note_unplanned_sync(CUdeviceptr address, std::size_t bytes) noexcept {
  const CompletingLock lock(*this);
  note(address, bytes, kNoPool);
}

void Heap::note(CUdeviceptr address, std::size_t bytes, PoolIndex pool) noexcept {
  LiveEntry missed;  // its free was not seen
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

// --- what is live, and the figures ---

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
  if (const CUresult result = planned_.grant_access(peer); result != CUDA_SUCCESS) return result;
  return dynamic_ ? dynamic_->grant_access(peer) : CUDA_SUCCESS;
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
    statistics.stitches = counts.views + counts.lengthened + counts.repaired;
    statistics.view_hits = counts.view_hits;
    statistics.grows = counts.grows;
    statistics.borrows += counts.borrows;
    statistics.views = dynamic_->views();
  }
  return statistics;
}

}  // namespace stalloc::serve
