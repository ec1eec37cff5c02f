// SPDX-License-Identifier: Apache-2.0
#include "tests/simcuda/driver/pool.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "tests/simcuda/driver/capture.h"
#include "tests/simcuda/driver/mapped_allocation.h"
#include "tests/simcuda/driver/pool_sharing.h"

namespace simcuda {
namespace {

constexpr std::uint64_t kPoolChunkBytes = 32ULL << 20;

std::set<Pool*>& pools() {
  static auto* const all = new std::set<Pool*>;
  return *all;
}

std::map<CUmemoryPool, Pool*>& by_handle() {
  static auto* const all = new std::map<CUmemoryPool, Pool*>;
  return *all;
}

// A destroyed pool's handle is the next one given out, even while its memory is in use. This is the worst that a driver
// may do.
std::vector<CUmemoryPool>& spare_pool_handles() {
  static auto* const handles = new std::vector<CUmemoryPool>;
  return *handles;
}

CUmemoryPool new_pool_handle() {
  static std::uintptr_t next = 0x20000;
  if (spare_pool_handles().empty()) return reinterpret_cast<CUmemoryPool>(next += 16);
  const CUmemoryPool handle = spare_pool_handles().back();
  spare_pool_handles().pop_back();
  return handle;
}

CUresult with_device(CUdevice ordinal, Device** device) {
  if (const CUresult result = check_initialized()) return result;
  *device = find_device(ordinal);
  return *device == nullptr ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

// CUmemPoolProps::maxSize; 0: no limit. Counting whole pages is this driver's choice, since CUDA does not say.
std::uint64_t maximum_size(const CUmemPoolProps& properties) {
#if CUDA_VERSION >= 12020
  const std::uint64_t most = std::min<std::uint64_t>(properties.maxSize, config().device_bytes);
  return (most + kPageBytes - 1) / kPageBytes * kPageBytes;
#else
  (void)properties;
  return 0;
#endif
}

// Where a reuse attribute is kept; null: it is not a reuse attribute.
int* reuse_slot(Pool& pool, CUmemPool_attribute attribute) {
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      return &pool.reuse[0];
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      return &pool.reuse[1];
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      return &pool.reuse[2];
    default:
      return nullptr;
  }
}

}  // namespace

Pool* make_pool(Device& device) {
  auto* pool = new Pool;
  pool->device = &device;
  pool->heap = std::make_unique<ChunkHeap>(device, kPoolChunkBytes, 1U << device.ordinal);
  device.heaps.push_back(pool->heap.get());
  pools().insert(pool);
  pool->handle = new_pool_handle();
  by_handle()[pool->handle] = pool;
  return pool;
}

Pool* find_pool(CUmemoryPool handle) {
  const auto found = by_handle().find(handle);
  return found == by_handle().end() ? nullptr : found->second;
}

void trim_to_threshold(int device) {
  const std::scoped_lock lock(memory_mutex());
  finish_mapped();
  for (Pool* pool : pools()) {
    if (pool->device->ordinal == device) pool->heap->trim(pool->destroyed ? 0 : pool->release_threshold);
  }
}

CUresult device_default_pool(CUmemoryPool* pool, CUdevice ordinal) {
  Device* device = nullptr;
  if (const CUresult result = with_device(ordinal, &device)) return result;
  *pool = handle_of(device->default_pool);
  return CUDA_SUCCESS;
}

CUresult device_get_pool(CUmemoryPool* pool, CUdevice ordinal) {
  Device* device = nullptr;
  if (const CUresult result = with_device(ordinal, &device)) return result;
  const std::scoped_lock lock(memory_mutex());
  *pool = handle_of(device->current_pool);
  return CUDA_SUCCESS;
}

CUresult device_set_pool(CUdevice ordinal, CUmemoryPool handle) {
  Device* device = nullptr;
  if (const CUresult result = with_device(ordinal, &device)) return result;
  const std::scoped_lock lock(memory_mutex());
  Pool* const pool = find_pool(handle);
  if (pool == nullptr || pool->device != device || pool->source != nullptr) return CUDA_ERROR_INVALID_VALUE;
  device->current_pool = pool;
  return CUDA_SUCCESS;
}

CUresult pool_create(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  if (const CUresult result = check_initialized()) return result;
  if (const CUresult result = check_safe_during_capture()) return result;
  if (pool == nullptr || properties == nullptr || properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
      properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUmemAllocationHandleType handles = properties->handleTypes;
  if (handles != CU_MEM_HANDLE_TYPE_NONE && handles != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Device* const device = find_device(properties->location.id);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const std::scoped_lock lock(memory_mutex());
  Pool* const fresh = make_pool(*device);
  fresh->handle_types = handles;
  if (const std::uint64_t most = maximum_size(*properties)) fresh->heap->set_limit(most);
  *pool = handle_of(fresh);
  return CUDA_SUCCESS;
}

// Memory that is still allocated from the pool stays valid and goes back when it is freed.
CUresult pool_destroy(CUmemoryPool handle) {
  if (const CUresult result = check_initialized()) return result;
  if (const CUresult result = check_safe_during_capture()) return result;
  const std::scoped_lock lock(memory_mutex());
  Pool* const pool = find_pool(handle);
  if (pool == nullptr || pool == pool->device->default_pool) return CUDA_ERROR_INVALID_VALUE;
  if (pool->device->current_pool == pool) pool->device->current_pool = pool->device->default_pool;
  pool->destroyed = true;
  by_handle().erase(handle);
  spare_pool_handles().push_back(handle);
  pool->heap->trim(0);
  return CUDA_SUCCESS;
}

// Trimming is refused during a capture that forbids it, but succeeds in a broken context (both seen on an H200).
CUresult pool_trim(CUmemoryPool handle, size_t keep) {
  if (const CUresult result = check_initialized()) return result;
  if (const CUresult result = check_safe_during_capture()) return result;
  const std::scoped_lock lock(memory_mutex());
  Pool* const pool = find_pool(handle);
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  pool->heap->trim(keep);
  return CUDA_SUCCESS;
}

CUresult pool_get_attribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  if (const CUresult result = check_initialized()) return result;
  if (const CUresult result = check_safe_during_capture()) return result;
  const std::scoped_lock lock(memory_mutex());
  Pool* const pool = find_pool(handle);
  if (pool == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const int* const reuse = reuse_slot(*pool, attribute)) {
    *static_cast<int*>(value) = *reuse;
    return CUDA_SUCCESS;
  }
  auto& answer = *static_cast<cuuint64_t*>(value);
  switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      answer = pool->release_threshold;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      answer = pool->heap->reserved.now;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      answer = pool->heap->reserved.high;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      answer = pool->heap->used.now;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      answer = pool->heap->used.high;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult pool_set_attribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  if (const CUresult result = check_initialized()) return result;
  if (const CUresult result = check_safe_during_capture()) return result;
  const std::scoped_lock lock(memory_mutex());
  Pool* const pool = find_pool(handle);
  if (pool == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (int* const reuse = reuse_slot(*pool, attribute)) {
    *reuse = *static_cast<int*>(value);
    return CUDA_SUCCESS;
  }
  const cuuint64_t wanted = *static_cast<cuuint64_t*>(value);
  if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
    pool->release_threshold = wanted;
    return CUDA_SUCCESS;
  }
  // The high marks can only be reset.
  if (wanted != 0) return CUDA_ERROR_INVALID_VALUE;
  if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) {
    pool->heap->reserved.high = pool->heap->reserved.now;
  } else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH) {
    pool->heap->used.high = pool->heap->used.now;
  } else {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult pool_set_access(CUmemoryPool handle, const CUmemAccessDesc* access, size_t count) {
  if (const CUresult result = check_initialized()) return result;
  const std::scoped_lock lock(memory_mutex());
  Pool* const pool = find_pool(handle);
  if (pool == nullptr || access == nullptr) return CUDA_ERROR_INVALID_VALUE;
  unsigned mask = pool->heap->access();
  for (size_t i = 0; i < count; ++i) {
    const int device = access[i].location.id;
    if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    if (find_device(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    const bool own = device == pool->device->ordinal;
    if (access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
      mask |= 1U << device;
    } else if (access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE && !own) {
      mask &= ~(1U << device);
    } else {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  pool->heap->set_access(mask);
  if (pool->source != nullptr) set_imported_access(*pool);
  return CUDA_SUCCESS;
}

CUresult pool_get_access(CUmemAccess_flags* flags, CUmemoryPool handle, CUmemLocation* location) {
  if (const CUresult result = check_initialized()) return result;
  const std::scoped_lock lock(memory_mutex());
  const Pool* const pool = find_pool(handle);
  if (pool == nullptr || find_device(location->id) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const bool allowed = (pool->heap->access() >> location->id & 1) != 0;
  *flags = allowed ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

}  // namespace simcuda
