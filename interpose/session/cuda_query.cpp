#include "interpose/session/cuda_query.h"

#include "interpose/base/cuda_driver.h"

namespace stalloc::cuda_query {
namespace {

// The driver's function of that exported name, looked up at first use: by then the driver is loaded.
template <class Function>
Function find(const char* symbol) noexcept {
  return reinterpret_cast<Function>(cuda_driver::symbol(symbol));
}

}  // namespace

int device_count() noexcept {
  static const auto get = find<CUresult (*)(int*)>("cuDeviceGetCount");
  int count = 0;
  return get != nullptr && get(&count) == CUDA_SUCCESS ? count : 0;
}

int current_device() noexcept {
  static const auto get = find<CUresult (*)(CUdevice*)>("cuCtxGetDevice");
  CUdevice device = -1;
  return get != nullptr && get(&device) == CUDA_SUCCESS ? device : -1;
}

CUcontext current_context() noexcept {
  static const auto get = find<CUresult (*)(CUcontext*)>("cuCtxGetCurrent");
  CUcontext context = nullptr;
  return get != nullptr && get(&context) == CUDA_SUCCESS ? context : nullptr;
}

bool has_failed() noexcept {
  static const auto ask = find<CUresult (*)(int*, int*)>("cuCtxGetStreamPriorityRange");
  int least = 0;
  int greatest = 0;
  return ask != nullptr && ask(&least, &greatest) != CUDA_SUCCESS;
}

std::uint64_t current_context_id() noexcept {
  static const auto get = find<CUresult (*)(CUcontext, unsigned long long*)>("cuCtxGetId");
  unsigned long long id = 0;
  return get != nullptr && get(nullptr, &id) == CUDA_SUCCESS ? id : 0;
}

// To retain a primary context that is not active makes one, which takes a quarter of a second.
bool is_primary_context(CUcontext context, int device) noexcept {
  static const auto retain = find<CUresult (*)(CUcontext*, CUdevice)>("cuDevicePrimaryCtxRetain");
  static const auto release = find<CUresult (*)(CUdevice)>("cuDevicePrimaryCtxRelease_v2");
  if (retain == nullptr || release == nullptr || !is_primary_active(device)) return false;
  CUcontext primary = nullptr;
  if (retain(&primary, device) != CUDA_SUCCESS) return false;
  release(device);
  return primary == context;
}

CUmemoryPool default_pool(int device) noexcept {
  static const auto get = find<CUresult (*)(CUmemoryPool*, CUdevice)>("cuDeviceGetDefaultMemPool");
  CUmemoryPool pool = nullptr;
  return get != nullptr && get(&pool, device) == CUDA_SUCCESS ? pool : nullptr;
}

CUmemoryPool current_pool(int device) noexcept {
  static const auto get = find<CUresult (*)(CUmemoryPool*, CUdevice)>("cuDeviceGetMemPool");
  CUmemoryPool pool = nullptr;
  return get != nullptr && get(&pool, device) == CUDA_SUCCESS ? pool : nullptr;
}

namespace {

std::uint64_t pool_attribute(CUmemoryPool pool, CUmemPool_attribute attribute) noexcept {
  static const auto get = find<CUresult (*)(CUmemoryPool, CUmemPool_attribute, void*)>("cuMemPoolGetAttribute");
  cuuint64_t value = 0;
  return get != nullptr && pool != nullptr && get(pool, attribute, &value) == CUDA_SUCCESS ? value : 0;
}

}  // namespace

std::uint64_t idle_pool_bytes(CUmemoryPool pool) noexcept {
  const std::uint64_t reserved = pool_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
  const std::uint64_t used = pool_attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
  return reserved > used ? reserved - used : 0;
}

std::uint64_t release_threshold(CUmemoryPool pool) noexcept {
  return pool_attribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
}

bool has_access(CUmemoryPool pool, int device) noexcept {
  static const auto get = find<CUresult (*)(CUmemAccess_flags*, CUmemoryPool, CUmemLocation*)>("cuMemPoolGetAccess");
  CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  return get != nullptr && get(&flags, pool, &location) == CUDA_SUCCESS && flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

int device_of(CUcontext context) noexcept {
  static const auto push = find<CUresult (*)(CUcontext)>("cuCtxPushCurrent_v2");
  static const auto pop = find<CUresult (*)(CUcontext*)>("cuCtxPopCurrent_v2");
  if (push == nullptr || pop == nullptr || push(context) != CUDA_SUCCESS) return -1;
  const int device = current_device();
  CUcontext popped = nullptr;
  pop(&popped);
  return device;
}

bool is_primary_active(int device) noexcept {
  static const auto state = find<CUresult (*)(CUdevice, unsigned*, int*)>("cuDevicePrimaryCtxGetState");
  unsigned flags = 0;
  int active = 0;
  return state != nullptr && state(device, &flags, &active) == CUDA_SUCCESS && active != 0;
}

trace::Device describe_device(int device) {
  static const auto name_of = find<CUresult (*)(char*, int, CUdevice)>("cuDeviceGetName");
  static const auto bytes_of = find<CUresult (*)(size_t*, CUdevice)>("cuDeviceTotalMem_v2");
  static const auto granularity_of =
      find<CUresult (*)(size_t*, const CUmemAllocationProp*, CUmemAllocationGranularity_flags)>(
          "cuMemGetAllocationGranularity");
  trace::Device description;
  description.ordinal = static_cast<std::uint32_t>(device);
  char name[128] = "";
  if (name_of != nullptr && name_of(name, sizeof name, device) == CUDA_SUCCESS) description.name = name;
  size_t bytes = 0;
  if (bytes_of != nullptr && bytes_of(&bytes, device) == CUDA_SUCCESS) description.total_bytes = bytes;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  if (granularity_of != nullptr &&
      granularity_of(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) == CUDA_SUCCESS) {
    description.granularity = bytes;
  }
  return description;
}

}  // namespace stalloc::cuda_query
