// SPDX-License-Identifier: Apache-2.0
// Copies and fills of rows, between device memory, arrays and host memory.
#include <algorithm>
#include <cstring>

#include "tests/simcuda/driver/address_space.h"
#include "tests/simcuda/driver/array.h"
#include "tests/simcuda/driver/capture.h"
#include "tests/simcuda/driver/copy.h"
#include "tests/simcuda/driver/host_memory.h"

namespace simcuda {
namespace {

// One end of a copy: its first row, and the distance in bytes from a row to the next.
struct Rows {
  Side begin;
  std::uint64_t pitch = 0;
};

struct Copy {
  Rows from;
  Rows to;
  std::uint64_t width = 0;  // bytes
  std::uint64_t height = 0;
};

// Bytes from the beginning of the first row to the end of the last; UINT64_MAX, which is never mapped, when that is
// more than there are addresses.
std::uint64_t span(std::uint64_t height, std::uint64_t pitch, std::uint64_t width) {
  if (height == 0 || width == 0) return 0;
  std::uint64_t bytes = 0;
  const bool wraps = __builtin_mul_overflow(height - 1, pitch, &bytes) || __builtin_add_overflow(bytes, width, &bytes);
  return wraps ? UINT64_MAX : bytes;
}

std::uint64_t span(const Rows& rows, const Copy& copy) { return span(copy.height, rows.pitch, copy.width); }

// A side as cuda.h's structure describes it.
struct Named {
  CUmemorytype type;
  CUdeviceptr device;
  CUdeviceptr host;
  CUarray array;
  std::uint64_t pitch;
  std::uint64_t x;  // bytes
  std::uint64_t y;
};

CUresult find_array_rows(const Named& named, const CUDA_MEMCPY2D& copy, Rows* rows) {
  const std::scoped_lock lock(memory_mutex());
  const Array* const array = find_array(named.array);
  if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const bool within = named.x <= array->row_bytes && copy.WidthInBytes <= array->row_bytes - named.x &&
                      named.y <= array->rows && copy.Height <= array->rows - named.y;
  if (!within) return CUDA_ERROR_INVALID_VALUE;
  *rows = {{array->at + named.y * array->row_bytes + named.x, true}, array->row_bytes};
  return CUDA_SUCCESS;
}

CUresult find_rows(const Named& named, const CUDA_MEMCPY2D& copy, Rows* rows) {
  if (named.type == CU_MEMORYTYPE_ARRAY) return find_array_rows(named, copy, rows);
  if (named.type != CU_MEMORYTYPE_HOST && named.type != CU_MEMORYTYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  const bool on_host = named.type == CU_MEMORYTYPE_HOST;
  const CUdeviceptr base = on_host ? named.host : named.device;
  *rows = {{base + named.y * named.pitch + named.x, !on_host}, named.pitch};
  return CUDA_SUCCESS;
}

CUresult find_both(const CUDA_MEMCPY2D* asked, Copy* copy) {
  if (asked == nullptr) return CUDA_ERROR_INVALID_VALUE;
  copy->width = asked->WidthInBytes;
  copy->height = asked->Height;
  const Named from{asked->srcMemoryType, asked->srcDevice, reinterpret_cast<CUdeviceptr>(asked->srcHost),
                   asked->srcArray,      asked->srcPitch,  asked->srcXInBytes,
                   asked->srcY};
  const Named to{asked->dstMemoryType, asked->dstDevice, reinterpret_cast<CUdeviceptr>(asked->dstHost),
                 asked->dstArray,      asked->dstPitch,  asked->dstXInBytes,
                 asked->dstY};
  if (const CUresult result = find_rows(from, *asked, &copy->from)) return result;
  return find_rows(to, *asked, &copy->to);
}

CUresult prepare(CUstream handle, const Copy& copy, std::shared_ptr<Stream>* stream) {
  if (const CUresult result = simcuda::prepare(handle, {copy.from.begin}, span(copy.from, copy), stream)) return result;
  return simcuda::prepare(handle, {copy.to.begin}, span(copy.to, copy), stream);
}

bool pinned_or_device(const Rows& rows, const Copy& copy) {
  const std::scoped_lock lock(memory_mutex());
  return rows.begin.on_device || is_pinned(pointer(rows.begin.at), span(rows, copy));
}

void run(Context& context, const Copy& copy) {
  if (span(copy.to, copy) == 0) return;
  if (!reach(context, copy.to.begin, span(copy.to, copy))) return;
  if (!reach(context, copy.from.begin, span(copy.from, copy))) return;
  for (std::uint64_t row = 0; row < copy.height; ++row) {
    std::memmove(pointer(copy.to.begin.at + row * copy.to.pitch), pointer(copy.from.begin.at + row * copy.from.pitch),
                 copy.width);
  }
}

// The synchronous form of a copy, on a default stream.
CUresult copy_now(CUstream handle, const CUDA_MEMCPY2D* asked) {
  Copy copy;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = find_both(asked, &copy)) return result;
  if (const CUresult result = prepare(handle, copy, &stream)) return result;
  if (const CUresult result = check_safe_during_capture()) return result;
  return submit_and_wait(*stream, [&context = *stream->context, &copy] { run(context, copy); });
}

}  // namespace

CUresult copy2d(const CUDA_MEMCPY2D* asked) { return copy_now(CU_STREAM_LEGACY, asked); }
CUresult copy2d_ptds(const CUDA_MEMCPY2D* asked) { return copy_now(CU_STREAM_PER_THREAD, asked); }

// Copies in stream order. Host memory that is not pinned is not supported.
CUresult copy2d_async(const CUDA_MEMCPY2D* asked, CUstream handle) {
  Copy copy;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = find_both(asked, &copy)) return result;
  if (const CUresult result = prepare(handle, copy, &stream)) return result;
  if (copy.height == 0 || copy.width == 0) return CUDA_SUCCESS;
  if (!pinned_or_device(copy.from, copy) || !pinned_or_device(copy.to, copy)) return CUDA_ERROR_NOT_SUPPORTED;
  return submit(*stream, [&context = *stream->context, copy] { run(context, copy); });
}

CUresult fill2d32_async(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height, CUstream handle) {
  std::uint64_t row_bytes = 0;
  std::shared_ptr<Stream> stream;
  if (to % sizeof value != 0 || pitch % sizeof value != 0) return CUDA_ERROR_INVALID_VALUE;
  if (__builtin_mul_overflow(width, sizeof value, &row_bytes)) return CUDA_ERROR_INVALID_VALUE;
  const std::uint64_t bytes = span(height, pitch, row_bytes);
  if (const CUresult result = simcuda::prepare(handle, {{to, true}}, bytes, &stream)) return result;
  Context& context = *stream->context;
  return submit(*stream, [&context, to, pitch, value, width, height, bytes] {
    if (bytes == 0 || !reach(context, {to, true}, bytes)) return;
    for (std::uint64_t row = 0; row < height; ++row) {
      std::fill_n(static_cast<unsigned*>(pointer(to + row * pitch)), width, value);
    }
  });
}

}  // namespace simcuda
