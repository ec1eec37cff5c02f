// SPDX-License-Identifier: Apache-2.0
#include "tests/simcuda/driver/array.h"

#include <algorithm>
#include <map>

#include "tests/simcuda/driver/capture.h"
#include "tests/simcuda/driver/heap.h"

namespace simcuda {
namespace {

std::map<CUarray, Array>& arrays() {
  static auto* const all = new std::map<CUarray, Array>;
  return *all;
}

// Bytes of one channel; 0: the format is not offered.
std::uint64_t bytes_of(CUarray_format format) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      return 4;
    default:
      return 0;
  }
}

// Whether the array keeps the limits in the CUDA programming guide's table of compute capabilities (9.0). With them no
// size can wrap.
bool is_valid(const CUDA_ARRAY3D_DESCRIPTOR& wanted) {
  const bool layered = (wanted.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
  const bool flat = wanted.Depth == 0 || layered;
  const std::uint64_t widest = flat ? 131072 : 16384;
  const std::uint64_t highest = flat ? 65536 : 16384;
  const std::uint64_t deepest = layered ? 2048 : 16384;
  const unsigned channels = wanted.NumChannels;
  return wanted.Width >= 1 && wanted.Width <= widest && wanted.Height <= highest && wanted.Depth <= deepest &&
         (channels == 1 || channels == 2 || channels == 4) && bytes_of(wanted.Format) > 0;
}

void end(std::map<CUarray, Array>::iterator array) {
  array->second.heap->free(array->second.at, {});
  array->second.heap->trim(0);
  arrays().erase(array);
}

}  // namespace

const Array* find_array(CUarray handle) {
  const auto found = arrays().find(handle);
  return found == arrays().end() ? nullptr : &found->second;
}

void drop_arrays(std::uint64_t context_id) {
  const std::scoped_lock lock(memory_mutex());
  for (auto array = arrays().begin(); array != arrays().end();) {
    const auto next = std::next(array);
    if (array->second.context_id == context_id) end(array);
    array = next;
  }
}

CUresult array3d_create(CUarray* handle, const CUDA_ARRAY3D_DESCRIPTOR* wanted) {
  static std::uintptr_t next = 1;
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  if (handle == nullptr || wanted == nullptr || !is_valid(*wanted)) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = check_safe_during_capture()) return result;
  Array array;
  array.row_bytes = wanted->Width * wanted->NumChannels * bytes_of(wanted->Format);
  array.rows = std::max<std::uint64_t>(wanted->Height, 1) * std::max<std::uint64_t>(wanted->Depth, 1);
  array.context_id = root_of(*context).id;
  array.descriptor = *wanted;
  const std::scoped_lock lock(memory_mutex());
  if (const CUresult result = check_active(*context)) return result;
  array.heap = find_device(context->device)->plain.get();
  if (const CUresult result = array.heap->allocate(array.row_bytes * array.rows, nullptr, &array.at)) return result;
  *handle = reinterpret_cast<CUarray>(16 * next++);
  arrays()[*handle] = array;
  return CUDA_SUCCESS;
}

CUresult array_create(CUarray* handle, const CUDA_ARRAY_DESCRIPTOR* wanted) {
  if (wanted == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_ARRAY3D_DESCRIPTOR flat{wanted->Width, wanted->Height, 0, wanted->Format, wanted->NumChannels, 0};
  return array3d_create(handle, &flat);
}

// Waits for the work that may use the array, and destroys it.
CUresult array_destroy(CUarray handle) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  if (const CUresult result = check_safe_during_capture()) return result;
  {
    const std::scoped_lock lock(memory_mutex());
    if (find_array(handle) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  }
  synchronize(root_of(*context));
  if (const CUresult result = error_of(*context)) return result;
  const std::scoped_lock lock(memory_mutex());
  const auto found = arrays().find(handle);
  if (found == arrays().end()) return CUDA_ERROR_INVALID_HANDLE;
  end(found);
  return CUDA_SUCCESS;
}

CUresult array3d_descriptor(CUDA_ARRAY3D_DESCRIPTOR* descriptor, CUarray handle) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  const std::scoped_lock lock(memory_mutex());
  const Array* const array = find_array(handle);
  if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *descriptor = array->descriptor;
  return CUDA_SUCCESS;
}

CUresult array_descriptor(CUDA_ARRAY_DESCRIPTOR* descriptor, CUarray handle) {
  CUDA_ARRAY3D_DESCRIPTOR full{};
  if (const CUresult result = array3d_descriptor(&full, handle)) return result;
  *descriptor = {full.Width, full.Height, full.Format, full.NumChannels};
  return CUDA_SUCCESS;
}

}  // namespace simcuda
