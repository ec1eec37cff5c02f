// Requests and frees of a stream, and their short way: programs make tensors and drop them at once, over and over. So
// where no plan says what comes next, the block that was freed last stays out of the books, and the next request, if it
// is of the same size on the same stream, has it back as it was. Any other use of the books enters it first (Lock).
#include <mutex>
#include <utility>

#include "interpose/serve/heap.h"

namespace stalloc::serve {
std::optional<CUdeviceptr> Heap::allocate(std::size_t bytes, StreamKey stream, CUmemoryPool pool,
                                          bool* exhausted) noexcept {
  if (bytes > device_bytes_) [[unlikely]] {
    if (exhausted != nullptr) *exhausted = true;
    return std::nullopt;
  }
  bool capturing = false;
  if (driver_.is_capturing(stream.handle, &capturing) != CUDA_SUCCESS) capturing = true;
  std::unique_lock lock(mutex_);
  const LiveEntry last = last_free_.entry;
  const bool fits = last.address != 0 && rounded(last.bytes) == rounded(bytes) && !capturing &&
                    last_free_.stream == order_.latest(stream);
  const PoolIndex index = fits ? figures_.pool_index(pool) : kNoPool;
  if (index == kNoPool) [[unlikely]] {
    return serve_by_the_books(std::move(lock), bytes, &stream, pool, capturing, exhausted);
  }
  last_free_.entry.address = 0;
  live_.insert({last.address, bytes, last.place, Origin::Dynamic, index});  // it had room before
  figures_.dynamic(bytes, index);
  dynamic_->taken_again(last.place);
  return last.address;
}

CUresult Heap::free_async(CUdeviceptr address, StreamKey stream, bool context_is_current) noexcept {
  bool capturing = false;
  if (const CUresult result = driver_.is_capturing(stream.handle, &capturing); result != CUDA_SUCCESS) return result;
  if (capturing) return CUDA_ERROR_INVALID_VALUE;
  std::unique_lock lock(mutex_);
  // What is asked of the order between streams must not give the last free's ordinal to another stream, and the event
  // of a free on a thread's own stream is recorded at once.
  const bool known = context_is_current || !stream.is_default();
  const StreamOrdinal ordinal = known && !planned_ ? order_.latest(stream) : kNoStream;
  if (ordinal == kNoStream || stream.is_per_thread()) [[unlikely]] {
    return free_by_the_books(std::move(lock), address, stream, context_is_current);
  }
  LiveEntry entry;
  if (!live_.erase(address, &entry)) return CUDA_ERROR_INVALID_VALUE;
  figures_.dynamic_freed(entry.bytes, entry.pool);
  book_last_free();
  if (entry.bytes > options_.policy.last_free_bytes) {
    give_back(entry, ordinal);
  } else {
    // With its number: an event that the program records behind the free is known to be behind it.
    last_free_ = {entry, ordinal, order_.number_free(ordinal)};
  }
  return CUDA_SUCCESS;
}

void Heap::enter_last_free() {
  const LiveEntry entry = last_free_.entry;
  last_free_.entry.address = 0;
  give_back(entry, last_free_.stream, last_free_.number);
}

}  // namespace stalloc::serve
