// SPDX-License-Identifier: Apache-2.0
// How a heap takes blocks back. A free takes the heap's lock once, unless an event has to be recorded.
//
//   1. `free_async` checks whether the stream is being captured, and takes the lock.
//   2. Fast path: without a plan, a free on the stream that was looked up last is deferred (`Dynamic::defer_free`),
//      unless work of another stream may still use the block (`StreamOrder::may_have_users`).
//   3. Otherwise `free_slow_path` finds the stream's ordinal (`StreamOrder::ordinal`), removes the block from the live
//      table and the figures, and calls `make_reusable`. That marks the bytes with the stream and the number of the
//      free (`StreamOrder::mark_freed`) and adds them to the free bytes of the plan (`Planned::release`) or of the
//      dynamic sub-allocator (`Dynamic::add_free`, `Dynamic::free`).
//   4. If the free is to have an event (`wants_event`), the lock is released after the block was removed, while the
//      event is recorded (`record_event`). Nothing else can find or use the block meanwhile.
//   5. If other streams cannot be ordered after the stream, `free_after_event` records an event, and
//      `collect_pending_frees` calls `make_reusable` when the event has completed. `free_when_complete` always does so.
//   6. `free_with_user` does what `free_slow_path` does, and then marks the bytes with both streams
//      (`StreamOrder::mark_also_used`).
//
// `free_sync` waits for the context without the lock (`FreeFence::wait`). The bytes are then free for every stream, and
// `release_freed_handles` returns their handles to the device.
#include "interpose/serve/heap/heap.h"

#include <chrono>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

namespace stalloc::serve {

// Tells the planner of steps of a free on `stream`; kNoStream: no work uses the bytes any more.
[[gnu::always_inline]] inline void Heap::note_freed(const LiveEntry& entry, StreamOrdinal stream) noexcept {
  if (entry.pool == kNoPool) return;
  try {
    steps_->freed(entry.number, stream);
  } catch (const std::bad_alloc&) {
    steps_->restart(*dynamic_);
  }
}

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

// Whether the free of a block on `ordinal` is to have an event of its own. The block is live, or was just removed.
[[gnu::always_inline]] inline bool Heap::wants_event(const LiveEntry& entry, StreamOrdinal ordinal) noexcept {
  if (entry.origin == Origin::Plan && planned_.event_on_free(entry.place)) return true;
  return order_.may_want_event(ordinal) && order_.wants_event(ordinal, serves_others(entry));
}

// Whether other streams may get the bytes of a block, and wait for its free.
bool Heap::serves_others(const LiveEntry& entry) noexcept {
  if (entry.origin == Origin::Dynamic) {
    return dynamic_->serves_large_of_others({entry.address, entry.place}, rounded(entry.bytes));
  }
  const bool merged = !planned_.tracks_free_bytes();  // true: other streams may get the bytes
  return merged && options_.cross_stream != CrossStream::Never;
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
  if (wants_event(entry, ordinal)) [[unlikely]] {
    const auto event = record_event(lock, ordinal);
    const StreamOrder::HandOver at_free(order_, event);
    const StreamOrdinal same = ordinal_after(event);
    if (same != kNoStream) free_or_defer(entry, same);
    return CUDA_SUCCESS;
  }
  free_or_defer(entry, ordinal);
  return CUDA_SUCCESS;
}

// Frees a block of the dynamic sub-allocator on the stream that was looked up last.
[[gnu::always_inline]] inline void Heap::free_or_defer(const LiveEntry& entry, StreamOrdinal ordinal) noexcept {
  const std::uint64_t bytes = rounded(entry.bytes);
  try {
    if (steps_ && steps_->may_have_slot(bytes)) note_freed(entry, ordinal);
    const bool may_be_shared = order_.has_users() && order_.may_have_users(ranges(entry));
    if (may_be_shared || (steps_ && steps_->takes_each_request_of(bytes))) {
      complete_deferred_free();
      dynamic_->free({entry.address, entry.place}, bytes, ordinal);
    } else {
      dynamic_->defer_free({entry.address, entry.place}, bytes, ordinal);
    }
  } catch (const std::bad_alloc&) {
    // The bytes stay unused for good.
  }
}

// Records an event for a free on the stream, without the lock: the call may wait for room in the stream's queue. The
// heap may have been closed meanwhile, or the stream may have another ordinal: call `ordinal_after`.
[[gnu::noinline]] StreamOrder::EventAtFree Heap::record_event(std::unique_lock<HeapMutex>& lock,
                                                              StreamOrdinal ordinal) noexcept {
  StreamOrder::EventAtFree event = order_.prepare_event(ordinal);
  if (event.event == nullptr) return event;
  lock.unlock();
  order_.record(event);
  lock.lock();
  complete_deferred_free();
  return event;
}

// The ordinal of the stream that an event was prepared for. kNoStream: the heap was closed, or the stream can have no
// ordinal any more, and the bytes of the free stay unused for good.
StreamOrdinal Heap::ordinal_after(const StreamOrder::EventAtFree& event) noexcept {
  return is_closed() ? kNoStream : order_.ordinal(event.key, true);
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
    if (!wants_event(entry, ordinal)) [[likely]] {
      make_reusable(entry, ordinal);
    } else {
      const auto event = record_event(lock, ordinal);
      const StreamOrder::HandOver at_free(order_, event);
      const StreamOrdinal same = ordinal_after(event);
      if (same != kNoStream) make_reusable(entry, same);
    }
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
  // An event is recorded on `user` only, as PyTorch's own allocator does: the queue of `stream` may be full.
  const bool has_event = wants_event(entry, user_ordinal);
  const auto event = has_event ? record_event(lock, user_ordinal) : StreamOrder::EventAtFree{};
  const StreamOrder::HandOver at_free(order_, event);
  const bool same_ordinals = !has_event || (!is_closed() && order_.ordinal_of_user(user, true) == user_ordinal &&
                                            order_.ordinal(stream, true) == ordinal);
  if (!same_ordinals) return CUDA_SUCCESS;  // the bytes stay unused for good
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

CUresult Heap::free_when_complete(CUdeviceptr address, StreamKey stream, std::optional<StreamKey> owner) noexcept {
  std::unique_lock lock(mutex_);
  return free_after_event(std::move(lock), address, stream, owner);
}

// Frees a block on a stream that other streams cannot be ordered after (it belongs to another context, or there are too
// many streams) or should not wait for. The bytes can be used again when an event that is recorded now has completed.
// Releases the lock while it records the event. Without an `owner` the callback is not called.
CUresult Heap::free_after_event(std::unique_lock<HeapMutex> lock, CUdeviceptr address, StreamKey stream,
                                std::optional<StreamKey> owner) noexcept {
  if (live_.find(address) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUevent unused = order_.take_unused_event();
  lock.unlock();
  PendingFrees::Free free;
  free.owner = owner;
  CUcontext context = nullptr;
  CUresult result = pending_frees_.record_event(stream, unused, &context, &free.event);
  if (result != CUDA_SUCCESS) return result;
  lock.lock();
  complete_deferred_free();
  // The call does not name this stream, so another thread may be destroying it: then it must get no ordinal any more.
  if (owner) free.preferred = order_.known_ordinal(*owner);
  CUevent unneeded = free.event;
  if (remove_live(address, &free.entry)) {
    try {
      pending_frees_.add(context, stream, free);
      unneeded = pending_frees_.take_spent(context);
    } catch (const std::bad_alloc&) {
      pending_frees_.give_up(free);  // the bytes stay unused for good
    }
  } else {
    result = CUDA_ERROR_INVALID_VALUE;
  }
  lock.unlock();
  if (unneeded != nullptr) driver_.destroy_event(unneeded);
  return result;
}

// Makes the blocks reusable whose events have completed. False if there are none. Not inlined, so that the code of
// requests without pending frees stays short.
[[gnu::noinline]] bool Heap::collect_pending_frees(std::size_t max_streams) {
  return pending_frees_.collect(max_streams, [&](const PendingFrees::Free& free) {
    if (free.event != nullptr) order_.give_back_event(free.event);
    make_reusable(free.entry, kNoStream, free.preferred);
  });
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

// Makes the bytes of a slot free, ordered as their marks say. Requests on the stream `preferred` get them first.
[[gnu::always_inline]] inline void Heap::release_slot(PhysicalRanges freed, StreamOrdinal preferred) noexcept {
  try {
    if (planned_.tracks_free_bytes()) {
      planned_.release(freed);
    } else {
      dynamic_->add_free(freed, preferred);
    }
  } catch (const std::bad_alloc&) {
    // The bytes stay unused for good.
  }
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
  if (!from_pool) create_events_ahead();
  const CompletingLock lock(*this);
  LiveEntry entry;
  if (!remove_live(address, &entry)) return CUDA_ERROR_INVALID_VALUE;
  if (!from_pool) order_.mark_all_complete(number);
  // For a block from a pool, the program's own work is complete. Work on the bytes from before the allocation may not
  // be: the marks of a plan's bytes still say so, and the block's stream is ordered after that work.
  if (from_pool && entry.origin == Origin::Plan) {
    release_slot(ranges(entry), entry.stream);
  } else {
    make_reusable(entry, from_pool ? entry.stream : kNoStream);
  }
  if (!from_pool) release_freed_handles(entry);
  return CUDA_SUCCESS;
}

// Frees what a request was served after a wait for earlier frees of the bytes has failed. The marks of a plan's bytes
// still name these frees.
void Heap::take_back(CUdeviceptr address) noexcept {
  LiveEntry entry;
  if (is_closed() || !remove_live(address, &entry)) return;
  if (entry.origin == Origin::Plan) return release_slot(ranges(entry), entry.stream);
  try {
    const PhysicalRanges freed = ranges(entry);
    const std::vector<PhysicalRange> taken(freed.begin(), freed.end());  // a copy: the free may remove the view
    make_reusable(entry, entry.stream);
    order_.mark_unordered(taken);
  } catch (const std::bad_alloc&) {
    // The bytes stay unused for good.
  }
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
      order_.mark_complete(freed);
    } else {
      order_.mark_freed(freed, stream, order_.assign_free_number(stream));
    }
    release_slot(freed, preferred);
  } catch (const std::bad_alloc&) {
    // The bytes stay unused for good.
  }
}

}  // namespace stalloc::serve
