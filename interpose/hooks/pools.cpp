// SPDX-License-Identifier: Apache-2.0
// Memory pools. Memory that is served for a pool counts in the pool's figures. session/pools.h says which pools are
// served.
#include <algorithm>

#include "interpose/hooks/actions.h"

namespace stalloc::hooks::pools {

CUresult create(const Call<CUresult(CUmemoryPool*, const CUmemPoolProps*)>& call, CUmemoryPool* pool,
                const CUmemPoolProps* properties) noexcept {
  const CUresult result = call.original(pool, properties);
  Heaps* heaps = Session::active_heaps();
  if (result == CUDA_SUCCESS && heaps != nullptr) heaps->pool_created(*pool, *properties);
  return result;
}

CUresult destroy(const Call<CUresult(CUmemoryPool)>& call, CUmemoryPool pool) noexcept {
  Heaps* heaps = Session::active_heaps();
  if (heaps == nullptr) return call.original(pool);
  CUresult result = CUDA_SUCCESS;
  heaps->pool_destroyed(pool, [&] { return (result = call.original(pool)) == CUDA_SUCCESS; });
  return result;
}

CUresult set_current(const Call<CUresult(CUdevice, CUmemoryPool)>& call, CUdevice device, CUmemoryPool pool) noexcept {
  const CUresult result = call.original(device, pool);
  Heaps* heaps = Session::active_heaps();
  if (result == CUDA_SUCCESS && heaps != nullptr) heaps->current_pool_changed(device);
  return result;
}

CUresult set_current_at(const Call<CUresult(CUmemLocation*, CUmemAllocationType, CUmemoryPool)>& call,
                        CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool) noexcept {
  const CUresult result = call.original(location, type, pool);
  Heaps* heaps = Session::active_heaps();
  if (result == CUDA_SUCCESS && heaps != nullptr && location->type == CU_MEM_LOCATION_TYPE_DEVICE) {
    heaps->current_pool_changed(location->id);
  }
  return result;
}

CUresult get_attribute(const Call<CUresult(CUmemoryPool, CUmemPool_attribute, void*)>& call, CUmemoryPool pool,
                       CUmemPool_attribute attribute, void* value) noexcept {
  const CUresult result = call.original(pool, attribute, value);
  Heaps* heaps = Session::active_heaps();
  if (result != CUDA_SUCCESS || heaps == nullptr || attribute < CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) return result;
  const auto use = heaps->pool_use(pool);
  if (!use) return result;
  auto& bytes = *static_cast<cuuint64_t*>(value);
  switch (attribute) {
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      bytes += use->reserved;
      break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      bytes += use->reserved_high;
      break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      bytes += use->served;
      break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: {
      // Only CUDA knows what it allocated before the heap was created.
      cuuint64_t current = 0;
      call.original(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &current);
      bytes = std::max<cuuint64_t>({bytes, current + use->served, use->used_high});
      break;
    }
    default:
      break;
  }
  return result;
}

CUresult set_attribute(const Call<CUresult(CUmemoryPool, CUmemPool_attribute, void*)>& call, CUmemoryPool pool,
                       CUmemPool_attribute attribute, void* value) noexcept {
  const CUresult result = call.original(pool, attribute, value);
  Heaps* heaps = Session::active_heaps();
  if (result == CUDA_SUCCESS && heaps != nullptr && attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
    heaps->set_release_threshold(pool, *static_cast<const cuuint64_t*>(value));
  }
  // Such a pool must never make a stream wait for another, which a heap may do.
  if (result == CUDA_SUCCESS && heaps != nullptr && attribute == CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES &&
      *static_cast<const int*>(value) == 0) {
    heaps->refuse_pool(pool);
  }
  if (result == CUDA_SUCCESS && heaps != nullptr) {
    heaps->reset_pool_high(pool, attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH,
                           attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH);
  }
  return result;
}

CUresult set_access(const Call<CUresult(CUmemoryPool, const CUmemAccessDesc*, size_t)>& call, CUmemoryPool pool,
                    const CUmemAccessDesc* access, size_t count) noexcept {
  const CUresult result = call.original(pool, access, count);
  Heaps* heaps = Session::active_heaps();
  if (result != CUDA_SUCCESS || heaps == nullptr) return result;
  CUresult refusal = CUDA_SUCCESS;
  for (size_t i = 0; i < count; ++i) {
    if (access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) continue;
    const CUresult granted =
        device_memory::call_until_served(0, [&] { return heaps->pool_access_granted(pool, access[i].location); });
    if (refusal == CUDA_SUCCESS) refusal = granted;
  }
  return refusal;
}

CUresult trim(const Call<CUresult(CUmemoryPool, size_t)>& call, CUmemoryPool pool, size_t keep) noexcept {
  if (Heaps* heaps = Session::active_heaps()) heaps->trim_pool(pool, keep);
  return call.original(pool, keep);
}

}  // namespace stalloc::hooks::pools
