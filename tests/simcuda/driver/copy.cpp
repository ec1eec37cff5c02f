// SPDX-License-Identifier: Apache-2.0
#include "tests/simcuda/driver/copy.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/simcuda/driver/address_space.h"
#include "tests/simcuda/driver/allocation.h"
#include "tests/simcuda/driver/capture.h"
#include "tests/simcuda/driver/host_memory.h"

namespace simcuda {
namespace {

CUdeviceptr address(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

// Whether this is memory of a graph, which has bytes only once the graph is launched.
bool is_of_graph(CUdeviceptr at, std::uint64_t bytes) {
  const auto allocation = find_allocation(at);
  if (allocation == allocations().end() || allocation->second.kind != Allocation::Kind::Graph) return false;
  return bytes <= allocation->second.bytes - (at - allocation->first);
}

void run_copy(Context& context, Side to, Side from, std::uint64_t bytes) {
  if (bytes == 0) return;
  if (!reach(context, to, bytes) || !reach(context, from, bytes)) return;
  std::memmove(pointer(to.at), pointer(from.at), bytes);
}

// Pageable host memory is read at the call and written before the call returns; pinned memory is used in stream order.
CUresult copy_async(CUstream handle, Side to, Side from, std::uint64_t bytes) {
  std::shared_ptr<Stream> stream;
  if (const CUresult result = prepare(handle, {to, from}, bytes, &stream)) return result;
  bool staged = false;
  bool waits = false;
  {
    const std::scoped_lock lock(memory_mutex());
    staged = !from.on_device && !is_pinned(pointer(from.at), bytes);
    waits = !to.on_device && !is_pinned(pointer(to.at), bytes);
  }
  Context& context = *stream->context;
  if (waits) return submit_and_wait(*stream, [&context, to, from, bytes] { run_copy(context, to, from, bytes); });
  if (staged) {
    const auto* const begin = static_cast<const char*>(pointer(from.at));
    auto stage = std::make_shared<std::vector<char>>(begin, begin + bytes);
    return submit(*stream, [&context, to, stage, bytes] {
      run_copy(context, to, {address(stage->data()), false}, bytes);
    });
  }
  return submit(*stream, [&context, to, from, bytes] { run_copy(context, to, from, bytes); });
}

// The synchronous form of a copy, on a default stream.
CUresult copy_now(CUstream handle, Side to, Side from, std::uint64_t bytes) {
  std::shared_ptr<Stream> stream;
  if (const CUresult result = prepare(handle, {to, from}, bytes, &stream)) return result;
  if (const CUresult result = check_safe_during_capture()) return result;
  return submit_and_wait(*stream,
                         [&context = *stream->context, to, from, bytes] { run_copy(context, to, from, bytes); });
}

// Copies between contexts: each side is reached by its own context, whether or not these have access to each other.
CUresult copy_to_peer_on(CUstream handle, CUdeviceptr to, CUcontext to_handle, CUdeviceptr from, CUcontext from_handle,
                         std::uint64_t bytes, bool waits) {
  Context* const to_context = find_context(to_handle);
  Context* const from_context = find_context(from_handle);
  if (to_context == nullptr || from_context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = prepare(handle, {{to, true}, {from, true}}, bytes, &stream)) return result;
  const auto run = [to_context, to, from_context, from, bytes] {
    if (bytes == 0 || !reach(*to_context, {to, true}, bytes) || !reach(*from_context, {from, true}, bytes)) return;
    std::memmove(pointer(to), pointer(from), bytes);
  };
  if (!waits) return submit(*stream, run);
  if (const CUresult result = check_safe_during_capture()) return result;
  return submit_and_wait(*stream, run);
}

template <class Unit>
CUresult fill(CUstream handle, CUdeviceptr to, Unit value, std::uint64_t count) {
  std::uint64_t bytes = 0;
  std::shared_ptr<Stream> stream;
  if (to % sizeof(Unit) != 0 || __builtin_mul_overflow(count, sizeof(Unit), &bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = prepare(handle, {{to, true}}, bytes, &stream)) return result;
  Context& context = *stream->context;
  return submit(*stream, [&context, to, value, count, bytes] {
    if (bytes == 0 || !reach(context, {to, true}, bytes)) return;
    std::fill_n(static_cast<Unit*>(pointer(to)), count, value);
  });
}

// The side that an address means by unified addressing: the device's if it is mapped or a graph has allocated it.
Side side_of(CUdeviceptr at) {
  const std::scoped_lock lock(memory_mutex());
  return {at, find_mapping(at) != mappings().end() || is_of_graph(at, 1)};
}

Side device(CUdeviceptr at) { return {at, true}; }
Side host(const void* memory) { return {address(memory), false}; }

}  // namespace

CUresult prepare(CUstream handle, std::initializer_list<Side> sides, std::uint64_t bytes,
                 std::shared_ptr<Stream>* stream) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  if (const CUresult result = find_stream(*context, handle, stream)) return result;
  const std::scoped_lock streams(stream_mutex());
  const bool captured = (*stream)->capture != nullptr;
  const std::scoped_lock lock(memory_mutex());
  for (const Side& side : sides) {
    if (!side.on_device || bytes == 0 || is_mapped(side.at, bytes)) continue;
    if (!captured || !is_of_graph(side.at, bytes)) return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

bool reach(Context& context, const Side& side, std::uint64_t bytes) {
  const std::scoped_lock lock(memory_mutex());
  if (!side.on_device || is_accessible(side.at, bytes, context.device)) return true;
  fault(context);
  return false;
}

CUresult copy_any(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy_now(CU_STREAM_LEGACY, side_of(to), side_of(from), bytes);
}
CUresult copy_any_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy_now(CU_STREAM_PER_THREAD, side_of(to), side_of(from), bytes);
}
CUresult copy_to_peer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes) {
  return copy_to_peer_on(CU_STREAM_LEGACY, to, to_context, from, from_context, bytes, true);
}
CUresult copy_to_peer_ptds(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                           size_t bytes) {
  return copy_to_peer_on(CU_STREAM_PER_THREAD, to, to_context, from, from_context, bytes, true);
}
CUresult copy_to_peer_async(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                            size_t bytes, CUstream stream) {
  return copy_to_peer_on(stream, to, to_context, from, from_context, bytes, false);
}
CUresult copy_to_device(CUdeviceptr to, const void* from, size_t bytes) {
  return copy_now(CU_STREAM_LEGACY, device(to), host(from), bytes);
}
CUresult copy_to_device_ptds(CUdeviceptr to, const void* from, size_t bytes) {
  return copy_now(CU_STREAM_PER_THREAD, device(to), host(from), bytes);
}
CUresult copy_to_host(void* to, CUdeviceptr from, size_t bytes) {
  return copy_now(CU_STREAM_LEGACY, host(to), device(from), bytes);
}
CUresult copy_to_host_ptds(void* to, CUdeviceptr from, size_t bytes) {
  return copy_now(CU_STREAM_PER_THREAD, host(to), device(from), bytes);
}
// Like the real one, a copy from device to device does not wait for its end.
CUresult copy_on_device(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy_async(CU_STREAM_LEGACY, device(to), device(from), bytes);
}
CUresult copy_on_device_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy_async(CU_STREAM_PER_THREAD, device(to), device(from), bytes);
}
CUresult copy_any_async(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy_async(stream, side_of(to), side_of(from), bytes);
}
CUresult copy_to_device_async(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return copy_async(stream, device(to), host(from), bytes);
}
CUresult copy_to_host_async(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy_async(stream, host(to), device(from), bytes);
}
CUresult copy_on_device_async(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy_async(stream, device(to), device(from), bytes);
}

CUresult fill8(CUdeviceptr to, unsigned char value, size_t count) { return fill(CU_STREAM_LEGACY, to, value, count); }
CUresult fill8_ptds(CUdeviceptr to, unsigned char value, size_t count) {
  return fill(CU_STREAM_PER_THREAD, to, value, count);
}
CUresult fill32(CUdeviceptr to, unsigned value, size_t count) { return fill(CU_STREAM_LEGACY, to, value, count); }
CUresult fill32_ptds(CUdeviceptr to, unsigned value, size_t count) {
  return fill(CU_STREAM_PER_THREAD, to, value, count);
}
CUresult fill8_async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  return fill(stream, to, value, count);
}
CUresult fill32_async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
  return fill(stream, to, value, count);
}

}  // namespace simcuda
