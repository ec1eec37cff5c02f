// SPDX-License-Identifier: Apache-2.0
// Allocating and freeing in stream order: from pools, and in graphs.
#include "tests/simcuda/driver/allocation.h"
#include "tests/simcuda/driver/capture.h"
#include "tests/simcuda/driver/pool.h"
#include "tests/simcuda/driver/stream.h"

namespace simcuda {
namespace {

// Allocates memory that belongs to the graph that the stream captures. Pre: stream_mutex() is held.
CUresult allocate_in_capture(Stream& stream, std::uint64_t bytes, CUdeviceptr* address) {
  if (stream.capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  {
    const std::scoped_lock lock(memory_mutex());
    const Device& device = *find_device(stream.context->device);
    if (const CUresult result = allocate_in_graph(*stream.capture->graph, device, bytes, address)) return result;
  }
  add_node(stream, {});
  return CUDA_SUCCESS;
}

// Frees in a capture. When the memory is not a graph's this is refused without harm to the capture, as seen on an H200
// (driver 580). Pre: stream_mutex() is held.
CUresult free_in_capture(Stream& stream, CUdeviceptr address) {
  if (stream.capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  {
    const std::scoped_lock lock(memory_mutex());
    if (const CUresult result = free_in_graph(*stream.capture->graph, address)) return result;
  }
  add_node(stream, {});
  return CUDA_SUCCESS;
}

// An operation on the legacy stream would depend on every blocking stream's capture; any operation outside captures may
// be forbidden by one. An H200 breaks those captures. Pre: stream_mutex() is held.
CUresult check_allowed(const Stream& stream) {
  if (&stream == stream.context->legacy.get()) {
    if (const CUresult result = check_implicit_capture(*stream.context)) return result;
  }
  return check_safe_during_capture_locked();
}

// `handle` null: the current pool of the stream's device. `wait`: see ChunkHeap::allocate.
CUresult allocate_outside_capture(const Stream& stream, CUmemoryPool handle, std::uint64_t bytes, CUdeviceptr* address,
                                  Point* wait) {
  const std::scoped_lock lock(memory_mutex());
  Pool* const pool = handle == nullptr ? find_device(stream.context->device)->current_pool : find_pool(handle);
  if (pool == nullptr || pool->source != nullptr) return CUDA_ERROR_INVALID_VALUE;
  const bool may_wait = pool->reuse[2] != 0;  // CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES
  if (const CUresult result = pool->heap->allocate(bytes, stream.timeline.get(), address, may_wait ? wait : nullptr)) {
    return result;
  }
  pool->live += 1;
  pool->device->counters.pool_allocs += 1;
  note_allocation(*address, {Allocation::Kind::Pool, bytes, pool->device->ordinal, pool->heap.get(), pool});
  return CUDA_SUCCESS;
}

// The same of a stream that is not captured: this comes before anything else is looked at (H200, driver 580).
CUresult check_beside_captures(const Stream& stream) {
  const std::scoped_lock lock(stream_mutex());
  return stream.capture == nullptr ? check_allowed(stream) : CUDA_SUCCESS;
}

// `handle` null: the current pool of the stream's device, unless the caller was to name one.
CUresult allocate_from_pool(CUdeviceptr* address, std::uint64_t bytes, CUmemoryPool handle, CUstream stream_handle,
                            bool names_no_pool) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = enter_stream(stream_handle, &context)) return result;
  if (const CUresult result = find_stream(*context, stream_handle, &stream)) return result;
  if (const CUresult result = check_beside_captures(*stream)) return result;
  if (address == nullptr || names_no_pool) return CUDA_ERROR_INVALID_VALUE;
  *address = 0;
  if (bytes == 0) return CUDA_SUCCESS;
  if (shall_fail(SIMCUDA_ALLOC)) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::scoped_lock lock(stream_mutex());
  if (const CUresult result = check_open(*stream)) return result;
  if (stream->capture != nullptr) return allocate_in_capture(*stream, bytes, address);
  if (const CUresult result = check_allowed(*stream)) return result;
  Point wait;
  if (const CUresult result = allocate_outside_capture(*stream, handle, bytes, address, &wait)) return result;
  return wait.passed() ? CUDA_SUCCESS : submit_locked(*stream, {}, {std::move(wait)}, nullptr);
}

}  // namespace

CUresult alloc_async(CUdeviceptr* address, size_t bytes, CUstream stream) {
  return allocate_from_pool(address, bytes, nullptr, stream, false);
}

CUresult alloc_from_pool_async(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return allocate_from_pool(address, bytes, pool, stream, pool == nullptr);
}

CUresult free_async(CUdeviceptr address, CUstream stream_handle) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = enter_stream(stream_handle, &context)) return result;
  if (const CUresult result = find_stream(*context, stream_handle, &stream)) return result;
  if (const CUresult result = check_beside_captures(*stream)) return result;
  if (address == 0) return CUDA_SUCCESS;
  const auto waiting = wait_for_room(*stream);  // unlike a request, which returns at once (H200, driver 580)
  const std::scoped_lock lock(stream_mutex());
  if (const CUresult result = check_open(*stream)) return result;
  if (stream->capture != nullptr) return free_in_capture(*stream, address);
  if (const CUresult result = check_allowed(*stream)) return result;
  {
    const std::scoped_lock memory(memory_mutex());
    if (!allocations().contains(address)) return CUDA_ERROR_INVALID_VALUE;
  }
  Point freed;
  if (const CUresult result = submit_locked(*stream, {}, {}, &freed, true)) return result;
  const std::scoped_lock memory(memory_mutex());
  const auto allocation = allocations().find(address);
  if (allocation == allocations().end()) return CUDA_ERROR_INVALID_VALUE;
  if (allocation->second.kind == Allocation::Kind::Graph) return free_after_launch(allocation, std::move(freed));
  end_allocation(allocation, std::move(freed));
  return CUDA_SUCCESS;
}

}  // namespace simcuda
