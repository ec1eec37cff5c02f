// Copies and fills. Where they may touch is checked as the work runs: what the device may not reach makes the
// context's error sticky, as on hardware.
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/simcuda/driver/address_space.h"
#include "tests/simcuda/driver/allocation.h"
#include "tests/simcuda/driver/capture.h"
#include "tests/simcuda/driver/stream.h"

namespace simcuda {
namespace {

void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }
CUdeviceptr address(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

struct Side {
  CUdeviceptr at = 0;
  bool on_device = false;
};

bool reachable(const Context& context, const Side& side, std::uint64_t bytes) {
  const std::scoped_lock lock(memory_mutex());
  return !side.on_device || is_accessible(side.at, bytes, context.device);
}

bool fail_unless(bool condition, Context& context) {
  if (!condition) context.error = CUDA_ERROR_ILLEGAL_ADDRESS;
  return condition;
}

// Whether the call may be made at all: a device side must be mapped now.
CUresult prepare(CUstream handle, std::initializer_list<Side> sides, std::uint64_t bytes,
                 std::shared_ptr<Stream>* stream) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  if (const CUresult result = find_stream(*context, handle, stream)) return result;
  const std::scoped_lock lock(memory_mutex());
  for (const Side& side : sides) {
    if (side.on_device && bytes > 0 && !is_mapped(side.at, bytes)) return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

void run_copy(Context& context, Side to, Side from, std::uint64_t bytes) {
  if (bytes == 0) return;
  if (!fail_unless(reachable(context, to, bytes) && reachable(context, from, bytes), context)) return;
  std::memmove(pointer(to.at), pointer(from.at), bytes);
}

// Pageable host memory is read at the call, and written before the call returns; pinned memory in stream order.
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
  if (waits) {
    Point done;
    const CUresult result = submit_eager(
        *stream, [&context, to, from, bytes] { run_copy(context, to, from, bytes); }, &done);
    if (result == CUDA_SUCCESS) done.wait();
    return result;
  }
  if (staged) {
    const auto* const begin = static_cast<const char*>(pointer(from.at));
    auto stage = std::make_shared<std::vector<char>>(begin, begin + bytes);
    return submit(*stream, [&context, to, stage, bytes] {
      run_copy(context, to, {address(stage->data()), false}, bytes);
    });
  }
  return submit(*stream, [&context, to, from, bytes] { run_copy(context, to, from, bytes); });
}

// The synchronous forms, on a default stream.
CUresult copy_now(CUstream handle, Side to, Side from, std::uint64_t bytes) {
  std::shared_ptr<Stream> stream;
  if (const CUresult result = prepare(handle, {to, from}, bytes, &stream)) return result;
  if (const CUresult result = check_safe_during_capture()) return result;
  Context& context = *stream->context;
  Point done;
  const CUresult result = submit_eager(
      *stream, [&] { run_copy(context, to, from, bytes); }, &done);
  if (result != CUDA_SUCCESS) return result;
  done.wait();
  return context.error;
}

template <class Unit>
CUresult fill(CUstream handle, CUdeviceptr to, Unit value, std::uint64_t count) {
  const std::uint64_t bytes = count * sizeof(Unit);
  std::shared_ptr<Stream> stream;
  if (to % sizeof(Unit) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = prepare(handle, {{to, true}}, bytes, &stream)) return result;
  Context& context = *stream->context;
  return submit(*stream, [&context, to, value, count, bytes] {
    if (bytes == 0 || !fail_unless(reachable(context, {to, true}, bytes), context)) return;
    std::fill_n(static_cast<Unit*>(pointer(to)), count, value);
  });
}

// One side of a two-dimensional copy: `height` rows, `pitch` bytes apart.
struct Rows {
  Side begin;
  std::uint64_t pitch = 0;
};

std::uint64_t span(const Rows& rows, const CUDA_MEMCPY2D& copy) {
  return copy.Height == 0 ? 0 : (copy.Height - 1) * rows.pitch + copy.WidthInBytes;
}

Rows source(const CUDA_MEMCPY2D& copy) {
  const bool host = copy.srcMemoryType == CU_MEMORYTYPE_HOST;
  const CUdeviceptr base = host ? reinterpret_cast<CUdeviceptr>(copy.srcHost) : copy.srcDevice;
  return {{base + copy.srcY * copy.srcPitch + copy.srcXInBytes, !host}, copy.srcPitch};
}

Rows target(const CUDA_MEMCPY2D& copy) {
  const bool host = copy.dstMemoryType == CU_MEMORYTYPE_HOST;
  const CUdeviceptr base = host ? reinterpret_cast<CUdeviceptr>(copy.dstHost) : copy.dstDevice;
  return {{base + copy.dstY * copy.dstPitch + copy.dstXInBytes, !host}, copy.dstPitch};
}

bool is_linear(CUmemorytype type) { return type == CU_MEMORYTYPE_HOST || type == CU_MEMORYTYPE_DEVICE; }

bool pinned_or_device(const Rows& rows, const CUDA_MEMCPY2D& copy) {
  const std::scoped_lock lock(memory_mutex());
  return rows.begin.on_device || is_pinned(pointer(rows.begin.at), span(rows, copy));
}

void run_copy2d(Context& context, const CUDA_MEMCPY2D& copy) {
  const Rows from = source(copy);
  const Rows to = target(copy);
  if (span(to, copy) == 0 || copy.WidthInBytes == 0) return;
  const bool may = reachable(context, to.begin, span(to, copy)) && reachable(context, from.begin, span(from, copy));
  if (!fail_unless(may, context)) return;
  for (std::uint64_t row = 0; row < copy.Height; ++row) {
    std::memcpy(pointer(to.begin.at + row * to.pitch), pointer(from.begin.at + row * from.pitch), copy.WidthInBytes);
  }
}

// By unified addressing: an address that is mapped is the device's.
Side side_of(CUdeviceptr at) {
  const std::scoped_lock lock(memory_mutex());
  return {at, find_mapping(at) != mappings().end()};
}

Side device(CUdeviceptr at) { return {at, true}; }
Side host(const void* memory) { return {address(memory), false}; }

}  // namespace

CUresult copy_any(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy_now(CU_STREAM_LEGACY, side_of(to), side_of(from), bytes);
}
CUresult copy_any_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy_now(CU_STREAM_PER_THREAD, side_of(to), side_of(from), bytes);
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
// Device to device does not wait for the copy, as the real one does not.
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

CUresult fill2d32_async(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height, CUstream handle) {
  const std::uint64_t bytes = height == 0 || width == 0 ? 0 : (height - 1) * pitch + width * sizeof value;
  std::shared_ptr<Stream> stream;
  if (to % sizeof value != 0 || pitch % sizeof value != 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = prepare(handle, {{to, true}}, bytes, &stream)) return result;
  Context& context = *stream->context;
  return submit(*stream, [&context, to, pitch, value, width, height, bytes] {
    if (bytes == 0 || !fail_unless(reachable(context, {to, true}, bytes), context)) return;
    for (std::uint64_t row = 0; row < height; ++row) {
      std::fill_n(static_cast<unsigned*>(pointer(to + row * pitch)), width, value);
    }
  });
}

// Between device memory and pinned host memory, in stream order; other host memory is not offered.
CUresult copy2d_async(const CUDA_MEMCPY2D* copy, CUstream handle) {
  std::shared_ptr<Stream> stream;
  if (copy == nullptr || !is_linear(copy->srcMemoryType) || !is_linear(copy->dstMemoryType)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Rows from = source(*copy);
  const Rows to = target(*copy);
  if (copy->Height == 0 || copy->WidthInBytes == 0) return CUDA_SUCCESS;
  if (const CUresult result = prepare(handle, {}, 0, &stream)) return result;
  {
    const std::scoped_lock lock(memory_mutex());
    if (from.begin.on_device && !is_mapped(from.begin.at, span(from, *copy))) return CUDA_ERROR_INVALID_VALUE;
    if (to.begin.on_device && !is_mapped(to.begin.at, span(to, *copy))) return CUDA_ERROR_INVALID_VALUE;
  }
  if (!pinned_or_device(from, *copy) || !pinned_or_device(to, *copy)) return CUDA_ERROR_NOT_SUPPORTED;
  return submit(*stream, [&context = *stream->context, copied = *copy] { run_copy2d(context, copied); });
}

}  // namespace simcuda
