// The end of a request: who may have its bytes next, and when.
#include <mutex>
#include <new>
#include <vector>

#include "interpose/serve/heap.h"

namespace stalloc::serve {

CUresult Heap::free_by_the_books(std::unique_lock<HeapMutex> lock, CUdeviceptr address, StreamKey stream,
                                 bool context_is_current) noexcept {
  book_last_free();
  if (const StreamOrdinal ordinal = order_.ordinal(stream, context_is_current); ordinal != kNoStream) {
    LiveEntry entry;
    if (!live_.erase(address, &entry)) return CUDA_ERROR_INVALID_VALUE;
    forget(entry);
    give_back(entry, ordinal);
    return CUDA_SUCCESS;
  }
  if (live_.find(address) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  lock.unlock();
  return free_on_foreign_stream(address, stream);
}

// The stream is none that this heap can order others behind: of another context, or one too many. An event behind the
// free says when the bytes can be used again.
CUresult Heap::free_on_foreign_stream(CUdeviceptr address, StreamKey stream) {
  ForeignFree free;
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
        foreign_frees_.push_back(free);
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

// Gives back what foreign streams are done with. A context that is gone has no work left.
void Heap::collect_foreign_frees() {
  std::erase_if(foreign_frees_, [this](const ForeignFree& free) {
    const CUresult result = driver_.query_event(free.event);
    const bool over = result == CUDA_SUCCESS || result == CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (!over) return false;
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
      return planned_->ranges(entry.place);
    case Origin::Dynamic:
      return dynamic_->ranges(dynamic_->place(entry.address, entry.place), rounded(entry.bytes));
    case Origin::Original:
      break;
  }
  return {};
}

// The bytes are free, behind the work of `stream`; kNoStream: the device is done with them. `number`: of the free,
// where it has one already.
void Heap::give_back(const LiveEntry& entry, StreamOrdinal stream, std::uint64_t number) {
  try {
    const PhysicalRanges freed = ranges(entry);
    if (stream == kNoStream) {
      order_.cleared(freed);
    } else {
      if (number == 0) number = order_.number_free(stream);
      order_.freed(freed, stream, number, wants_event(entry));
    }
    if (entry.origin == Origin::Dynamic) {
      dynamic_->free(freed, entry.place, stream);
    } else if (merged_) {
      dynamic_->give(freed, stream);
    } else {
      planned_->occupancy().release(freed);
    }
  } catch (const std::bad_alloc&) {
    // The bytes stay unused for good.
  }
}

// Whether an event is recorded at the free, so that who has to wait for it waits for nothing behind it: where the plan
// knows that another stream will want the bytes, or where streams share large blocks as a rule.
bool Heap::wants_event(const LiveEntry& entry) const noexcept {
  if (entry.origin == Origin::Plan) return planned_->event_on_free(entry.place);
  return options_.cross_stream == CrossStream::Share && entry.bytes >= options_.policy.small_bytes &&
         order_.has_several_users();
}

}  // namespace stalloc::serve
