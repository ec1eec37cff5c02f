// The end of a request: who may have its bytes next, and when.
#include <mutex>
#include <new>
#include <vector>

#include "interpose/serve/heap/heap.h"

namespace stalloc::serve {

CUresult Heap::free_slow_path(std::unique_lock<HeapMutex> lock, CUdeviceptr address, StreamKey stream,
                              bool context_is_current) noexcept {
  complete_deferred_free();
  if (const StreamOrdinal ordinal = order_.ordinal(stream, context_is_current); ordinal != kNoStream) {
    LiveEntry entry;
    if (!live_.erase(address, &entry)) return CUDA_ERROR_INVALID_VALUE;
    forget(entry);
    give_back(entry, ordinal);
    return CUDA_SUCCESS;
  }
  if (live_.find(address) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  lock.unlock();
  return free_behind_event(address, stream);
}

CUresult Heap::free_when_over(CUdeviceptr address, StreamKey stream) noexcept {
  {
    const Lock lock(*this);
    if (live_.find(address) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  }
  return free_behind_event(address, stream);
}

// The stream is none that others are ordered behind: of another context, or one too many, or the caller wants nobody to
// wait for it. An event behind the free says when the bytes can be used again.
CUresult Heap::free_behind_event(CUdeviceptr address, StreamKey stream) noexcept {
  PendingFree free;
  if (const CUresult result = driver_.stream_context(stream.handle, &free.context); result != CUDA_SUCCESS)
    return result;
  const ContextScope scope(driver_, free.context);
  if (!scope.ok()) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult result = driver_.create_event(&free.event); result != CUDA_SUCCESS) return result;
  CUresult result = driver_.record_event(free.event, stream.handle);
  if (result == CUDA_SUCCESS) {
    const Lock lock(*this);
    if (live_.erase(address, &free.entry)) {
      forget(free.entry);
      try {
        pending_frees_.push_back(free);
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

// Gives back what is over for the streams that it was freed on. A context that is gone has no work left. The oldest are
// asked, and no more once several are not over: a question costs as much as a request.
void Heap::collect_pending_frees() {
  constexpr int kMostPending = 4;
  int pending = 0;
  std::erase_if(pending_frees_, [&](const PendingFree& free) {
    if (pending == kMostPending) return false;
    const CUresult result = driver_.query_event(free.event);
    const bool over = result == CUDA_SUCCESS || result == CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (!over) {
      ++pending;
      return false;
    }
    if (result == CUDA_SUCCESS) driver_.destroy_event(free.event);
    give_back(free.entry, kNoStream);
    return true;
  });
}

CUresult Heap::free_sync(CUdeviceptr address) noexcept {
  std::uint64_t number = 0;
  bool from_pool = false;
  {
    const Look look(mutex_);
    const LiveEntry* entry = live_.find(address);
    if (entry == nullptr) return CUDA_ERROR_INVALID_VALUE;
    from_pool = entry->pool != kNoPool;
    if (!from_pool) number = order_.take_number();
  }
  if (!from_pool) {
    // Without the lock: the work that is waited for may itself wait for another thread's request.
    if (const CUresult result = fence_.wait(); result != CUDA_SUCCESS) return result;
  }
  const Lock lock(*this);
  LiveEntry entry;
  if (!live_.erase(address, &entry)) return CUDA_ERROR_INVALID_VALUE;
  forget(entry);
  if (!from_pool) order_.synchronized(number);
  give_back(entry, kNoStream);
  if (!from_pool) release_freed(entry);
  return CUDA_SUCCESS;
}

// What cudaFree gives back is free for everybody again, whatever a pool may keep.
void Heap::release_freed(const LiveEntry& entry) {
  if (entry.origin != Origin::Dynamic) return;
  const std::uint64_t keep = keep_bytes_.load(std::memory_order_relaxed);
  try {
    if (keep != ~std::uint64_t{0}) {
      if (figures_.sums().physical_bytes > keep) give_back_idle(keep);
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

void Heap::forget(const LiveEntry& entry) {
  if (entry.origin == Origin::Plan) {
    figures_.planned_freed(entry.bytes, entry.pool);
  } else {
    figures_.dynamic_freed(entry.bytes, entry.pool);
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
void Heap::give_back(const LiveEntry& entry, StreamOrdinal stream) {
  try {
    if (entry.origin == Origin::Dynamic) {
      dynamic_->free({entry.address, entry.place}, rounded(entry.bytes), stream);
      return;
    }
    const PhysicalRanges freed = ranges(entry);
    if (stream == kNoStream) {
      order_.cleared(freed);
    } else {
      order_.freed(freed, stream, planned_.event_on_free(entry.place));
    }
    if (planned_.keeps_free_bytes()) {
      planned_.release(freed);
    } else {
      dynamic_->give(freed, stream);
    }
  } catch (const std::bad_alloc&) {
    // The bytes stay unused for good.
  }
}

}  // namespace stalloc::serve
