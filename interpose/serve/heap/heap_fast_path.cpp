// Requests and frees of a stream, and their short way: programs make tensors and drop them at once, over and over. So
// where no plan says what comes next, a free is deferred (plan/online/online_allocator.h), and the next request, if it
// is of the same size on the same stream, has the block back as it was. Whatever else looks at free bytes completes the
// free first (Lock).
#include <mutex>
#include <new>
#include <utility>

#include "interpose/serve/heap/heap.h"

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
  const bool fits = dynamic_ && !capturing && dynamic_->deferred_serves(rounded(bytes), order_.latest(stream));
  const PoolIndex index = fits ? figures_.pool_index(pool) : kNoPool;
  if (index == kNoPool) [[unlikely]] {
    return allocate_slow_path(std::move(lock), bytes, &stream, pool, capturing, exhausted);
  }
  const DeviceBackend::Block& block = dynamic_->reuse_deferred();
  live_.insert({block.address, bytes, block.view, Origin::Dynamic, index});  // it had room before
  figures_.dynamic(bytes, index);
  return block.address;
}

CUresult Heap::free_async(CUdeviceptr address, StreamKey stream, bool context_is_current) noexcept {
  bool capturing = false;
  if (const CUresult result = driver_.is_capturing(stream.handle, &capturing); result != CUDA_SUCCESS) return result;
  if (capturing) return CUDA_ERROR_INVALID_VALUE;
  std::unique_lock lock(mutex_);
  // What is asked of the order between streams must not give the ordinal of a deferred free to another stream, and the
  // event of a free on a thread's own stream is recorded at once.
  const bool known = context_is_current || !stream.is_default();
  const StreamOrdinal ordinal = known && !planned_.exists() ? order_.latest(stream) : kNoStream;
  if (ordinal == kNoStream || stream.is_per_thread()) [[unlikely]] {
    return free_slow_path(std::move(lock), address, stream, context_is_current);
  }
  LiveEntry entry;
  if (!live_.erase(address, &entry)) return CUDA_ERROR_INVALID_VALUE;
  figures_.dynamic_freed(entry.bytes, entry.pool);
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

}  // namespace stalloc::serve
