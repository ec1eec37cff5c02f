// SPDX-License-Identifier: Apache-2.0
#include "interpose/session/cuda.h"

#include "interpose/base/program_streams.h"

namespace stalloc {

void Cuda::find_all() const noexcept {
#define STALLOC_DRIVER_FUNCTION(name, symbol, parameters) (void)name##_.get();
#include "interpose/session/cuda.def"
#undef STALLOC_DRIVER_FUNCTION
}

std::uint64_t Cuda::current_context_id() const noexcept {
  unsigned long long id = 0;
  return cuCtxGetId_(nullptr, &id) == CUDA_SUCCESS ? id : 0;
}

int Cuda::device_count() const noexcept {
  int count = 0;
  return cuDeviceGetCount_(&count) == CUDA_SUCCESS ? count : 0;
}

int Cuda::current_device() const noexcept {
  CUdevice device = -1;
  return cuCtxGetDevice_(&device) == CUDA_SUCCESS ? device : -1;
}

int Cuda::device_of(CUcontext context) const noexcept {
  if (cuCtxPopCurrent_.get() == nullptr || cuCtxPushCurrent_(context) != CUDA_SUCCESS) return -1;
  const int device = current_device();
  CUcontext popped = nullptr;
  cuCtxPopCurrent_(&popped);
  return device;
}

bool Cuda::is_primary_active(int device) const noexcept {
  unsigned flags = 0;
  int active = 0;
  return cuDevicePrimaryCtxGetState_(device, &flags, &active) == CUDA_SUCCESS && active != 0;
}

// Retaining a primary context that is not active would create it, which takes a quarter of a second.
CUcontext Cuda::primary_context(int device) const noexcept {
  if (cuDevicePrimaryCtxRelease_.get() == nullptr || !is_primary_active(device)) return nullptr;
  const auto relaxed = relax_captures();
  CUcontext primary = nullptr;
  if (cuDevicePrimaryCtxRetain_(&primary, device) != CUDA_SUCCESS) return nullptr;
  cuDevicePrimaryCtxRelease_(device);
  return primary;
}

bool Cuda::is_primary_context(CUcontext context, int device) const noexcept {
  return context != nullptr && primary_context(device) == context;
}

trace::Device Cuda::describe_device(int device) const {
  trace::Device description;
  description.ordinal = static_cast<std::uint32_t>(device);
  char name[128] = "";
  if (cuDeviceGetName_(name, sizeof name, device) == CUDA_SUCCESS) description.name = name;
  std::size_t bytes = 0;
  if (cuDeviceTotalMem_(&bytes, device) == CUDA_SUCCESS) description.total_bytes = bytes;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  if (cuMemGetAllocationGranularity_(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) == CUDA_SUCCESS) {
    description.granularity = bytes;
  }
  return description;
}

bool Cuda::synchronize_memory_operations(CUcontext context) noexcept {
  constexpr unsigned kSyncMemops = 0x80;  // CU_CTX_SYNC_MEMOPS; older headers do not know it
  if (cuCtxPopCurrent_.get() == nullptr || cuCtxSetFlags_.get() == nullptr) return false;
  const std::lock_guard lock(flags_mutex_);
  if (cuCtxPushCurrent_(context) != CUDA_SUCCESS) return false;
  unsigned flags = 0;
  const bool done = cuCtxGetFlags_(&flags) == CUDA_SUCCESS &&
                    ((flags & kSyncMemops) != 0 || cuCtxSetFlags_(flags | kSyncMemops) == CUDA_SUCCESS);
  CUcontext popped = nullptr;
  cuCtxPopCurrent_(&popped);
  return done;
}

CUmemoryPool Cuda::default_pool(int device) const noexcept {
  CUmemoryPool pool = nullptr;
  return cuDeviceGetDefaultMemPool_(&pool, device) == CUDA_SUCCESS ? pool : nullptr;
}

CUmemoryPool Cuda::current_pool(int device) const noexcept {
  CUmemoryPool pool = nullptr;
  return cuDeviceGetMemPool_(&pool, device) == CUDA_SUCCESS ? pool : nullptr;
}

bool Cuda::has_access(CUmemoryPool pool, int device) const noexcept {
  CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  return cuMemPoolGetAccess_(&flags, pool, &location) == CUDA_SUCCESS && flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

std::uint64_t Cuda::pool_attribute(CUmemoryPool pool, CUmemPool_attribute attribute) const noexcept {
  cuuint64_t value = 0;
  return pool != nullptr && cuMemPoolGetAttribute_(pool, attribute, &value) == CUDA_SUCCESS ? value : 0;
}

std::uint64_t Cuda::release_threshold(CUmemoryPool pool) const noexcept {
  return pool_attribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
}

CUresult Cuda::trim_nothing(CUmemoryPool pool) const noexcept {
  const auto trim = cuMemPoolTrimTo_.get();
  return trim == nullptr || pool == nullptr ? CUDA_SUCCESS : trim(pool, ~std::size_t{0});
}

CUcontext Cuda::context_of_stream(CUstream stream) const noexcept {
  if (stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) return current_context();
  if (is_destroyed(stream)) return nullptr;
  const auto relaxed = relax_captures();
  CUcontext context = nullptr;
  return cuStreamGetCtx_(stream, &context) == CUDA_SUCCESS ? context : nullptr;
}

CUresult Cuda::create_stream(CUstream* stream) const noexcept {
  const auto relaxed = relax_captures();
  const CUresult result = cuStreamCreate_(stream, CU_STREAM_NON_BLOCKING);
  if (result == CUDA_SUCCESS) note_stream_created(*stream, CU_STREAM_NON_BLOCKING);
  return result;
}

}  // namespace stalloc
