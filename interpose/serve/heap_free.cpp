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

// The stream is none that this heap can order others behind: of another context, or one too many.
CUresult Heap::free_on_foreign_stream(CUdeviceptr address, StreamKey stream) {
  if (const CUresult result = driver_.synchronize_stream(stream.handle); result != CUDA_SUCCESS) return result;
  const Lock lock(*this);
  LiveEntry entry;
  if (!live_.erase(address, &entry)) return CUDA_ERROR_INVALID_VALUE;
  forget(entry);
  give_back(entry, kNoStream);
  return CUDA_SUCCESS;
}

CUresult Heap::free_sync(CUdeviceptr address) noexcept {
  std::uint64_t number = 0;
  {
    const Lock lock(*this);
    LiveEntry entry;
    if (!live_.erase(address, &entry)) return CUDA_ERROR_INVALID_VALUE;
    forget(entry);
    number = order_.take_number();
    hold_back(entry, number);
  }
  const CUresult result = synchronize(number);
  return result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ? CUDA_SUCCESS : result;
}

void Heap::forget(const LiveEntry& entry) {
  if (entry.origin == Origin::Plan) {
    figures_.planned_freed(entry.bytes, entry.pool);
  } else {
    figures_.dynamic_freed(entry.bytes, entry.pool);
  }
}

void Heap::hold_back(const LiveEntry& entry, std::uint64_t number) {
  try {
    unordered_.push_back({entry, number});
  } catch (const std::bad_alloc&) {
    // The bytes stay taken for good.
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

// The bytes are free, behind the work of `stream`; kNoStream: the device is done with them.
void Heap::give_back(const LiveEntry& entry, StreamOrdinal stream) {
  try {
    const PhysicalRanges freed = ranges(entry);
    if (stream == kNoStream) {
      order_.cleared(freed);
    } else {
      order_.freed(freed, stream, entry.origin == Origin::Plan && planned_->event_on_free(entry.place));
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

// Waits for the context without the lock: the work that it waits for may itself wait for another thread's request.
// What was held back before `number` is free afterwards.
CUresult Heap::synchronize(std::uint64_t number) {
  const ContextScope scope(driver_, context_);
  if (!scope.ok()) return CUDA_ERROR_INVALID_CONTEXT;
  {
    const Lock lock(*this);
    if (order_.any_capturing()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (const CUresult result = driver_.synchronize_context(); result != CUDA_SUCCESS) return result;
  const Lock lock(*this);
  order_.synchronized(number);
  std::erase_if(unordered_, [&](const Unordered& held) {
    if (held.number > number) return false;
    give_back(held.entry, kNoStream);
    return true;
  });
  return CUDA_SUCCESS;
}

}  // namespace stalloc::serve
