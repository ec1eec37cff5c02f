// SPDX-License-Identifier: Apache-2.0
// Questions about pointers.
#include <cstring>

#include "tests/simcuda/driver/allocation.h"
#include "tests/simcuda/driver/host_memory.h"
#include "tests/simcuda/driver/pool.h"

namespace simcuda {
namespace {

// Everything that is known of a pointer; most answers depend on more than one of these.
struct Known {
  CUdeviceptr address = 0;
  Mapping* mapping = nullptr;  // what is mapped there: nothing yet for a graph's memory
  CUdeviceptr mapped_at = 0;
  Allocation* allocation = nullptr;
  CUdeviceptr allocated_at = 0;
  CUdeviceptr reserved_at = 0;  // reserved by cuMemAddressReserve; 0: not reserved
  std::uint64_t reserved_bytes = 0;
  const HostMemory* host = nullptr;

  [[nodiscard]] bool nothing() const {
    return mapping == nullptr && allocation == nullptr && reserved_at == 0 && host == nullptr;
  }
};

// Pre: memory_mutex() is held. An address that a heap has mapped but not allocated is not a pointer of the program's.
Known look_up(CUdeviceptr address) {
  Known known;
  known.address = address;
  known.host = find_host_memory(address);
  known.reserved_at = find_reservation(address, 1, &known.reserved_bytes);
  const auto allocation = find_allocation(address);
  if (allocation != allocations().end()) {
    known.allocation = &allocation->second;
    known.allocated_at = allocation->first;
  }
  const auto mapping = find_mapping(address);
  if (mapping != mappings().end() && (known.allocation != nullptr || mapping->second.from_program)) {
    known.mapping = &mapping->second;
    known.mapped_at = mapping->first;
  }
  return known;
}

template <class Value>
CUresult put(void* data, Value value) {
  std::memcpy(data, &value, sizeof value);
  return CUDA_SUCCESS;
}

// The context to which the memory belongs. Stream-ordered and virtual memory belong to none: for the former the CUDA
// programming guide says so (stream-ordered memory allocator, pointer attributes), for the latter it was observed.
Context* context_of(const Known& known) {
  if (known.host != nullptr) return known.host->context;
  return known.allocation != nullptr ? known.allocation->context : nullptr;
}

CUresult range_start(const Known& known, void* data) {
  if (known.host != nullptr) return put<CUdeviceptr>(data, known.host->begin);
  return put<CUdeviceptr>(data, known.allocation != nullptr ? known.allocated_at : known.reserved_at);
}

CUresult range_bytes(const Known& known, void* data) {
  if (known.host != nullptr) return put<size_t>(data, known.host->bytes);
  return put<size_t>(data, known.allocation != nullptr ? known.allocation->bytes : known.reserved_bytes);
}

int device_of(const Known& known) {
  if (known.host != nullptr) return known.host->context->device;
  return known.allocation != nullptr ? known.allocation->device : known.mapping->extent->device;
}

std::uint64_t buffer_id(const Known& known) {
  if (known.host != nullptr) return known.host->buffer_id;
  return known.allocation != nullptr ? known.allocation->buffer_id : known.mapping->extent->id;
}

unsigned handle_types(const Known& known) {
  if (known.host != nullptr) return CU_MEM_HANDLE_TYPE_NONE;
  if (known.allocation == nullptr) return known.mapping->extent->properties.requestedHandleTypes;
  return known.allocation->pool == nullptr ? CU_MEM_HANDLE_TYPE_NONE : known.allocation->pool->handle_types;
}

bool has_rdma(const Known& known) {
  if (known.host != nullptr) return false;
  return known.allocation != nullptr || known.mapping->extent->properties.allocFlags.gpuDirectRDMACapable != 0;
}

// The flag of the allocation for memory of cuMemAlloc, pools and the like, of the mapping for virtual memory.
bool* sync_memops(const Known& known) {
  if (known.allocation != nullptr) return &known.allocation->sync_memops;
  return known.mapping != nullptr ? &known.mapping->sync_memops : nullptr;
}

// The attributes that have an answer also where addresses are reserved and nothing is mapped.
CUresult answer_address(const Known& known, CUpointer_attribute attribute, void* data, bool* answered) {
  *answered = true;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return range_start(known, data);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return range_bytes(known, data);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return put(data, known.mapping != nullptr || known.host != nullptr);
    default:
      *answered = false;
      return CUDA_SUCCESS;
  }
}

CUresult answer(const Known& known, CUpointer_attribute attribute, void* data) {
  bool answered = false;
  const CUresult result = answer_address(known, attribute, data, &answered);
  if (answered) return result;
  const bool on_host = known.host != nullptr;
  if (!on_host && known.mapping == nullptr && known.allocation == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Allocation* const allocation = known.allocation;
  const auto is = [&](Allocation::Kind kind) { return allocation != nullptr && allocation->kind == kind; };
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return put(data, handle_of(context_of(known)));
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return put<unsigned>(data, on_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return put(data, known.address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!on_host && !is(Allocation::Kind::Managed)) return CUDA_ERROR_INVALID_VALUE;
      return put(data, known.address);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: {
      const bool* const set = sync_memops(known);
      return set == nullptr ? CUDA_ERROR_INVALID_VALUE : put<unsigned>(data, *set ? 1 : 0);
    }
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return put<unsigned long long>(data, buffer_id(known));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return put(data, is(Allocation::Kind::Managed));
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return put(data, device_of(known));
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return put<int>(data, is(Allocation::Kind::Plain) ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return put(data, handle_types(known));
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return put<int>(data, has_rdma(known) ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return put(data, allocation == nullptr ? CUmemoryPool{} : handle_of(allocation->pool));
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

std::size_t bytes_of(CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return sizeof(bool);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return sizeof(int);
    default:
      return sizeof(CUdeviceptr);
  }
}

bool is_known(CUpointer_attribute attribute) {
  return attribute >= CU_POINTER_ATTRIBUTE_CONTEXT && attribute <= CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE &&
         attribute != CU_POINTER_ATTRIBUTE_P2P_TOKENS && attribute != CU_POINTER_ATTRIBUTE_ACCESS_FLAGS;
}

}  // namespace

CUresult pointer_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  if (const CUresult result = check_initialized()) return result;
  const std::scoped_lock lock(memory_mutex());
  const Known known = look_up(address);
  if (data == nullptr || !is_known(attribute) || known.nothing()) return CUDA_ERROR_INVALID_VALUE;
  return answer(known, attribute, data);
}

// As documented, an attribute that cuPointerGetAttribute would refuse is answered with null or 0 here, and a pointer
// that is not CUDA's is no error.
CUresult pointer_attributes(unsigned count, CUpointer_attribute* attributes, void** data, CUdeviceptr address) {
  if (const CUresult result = check_initialized()) return result;
  if (count == 0 || attributes == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::scoped_lock lock(memory_mutex());
  const Known known = look_up(address);
  for (unsigned i = 0; i < count; ++i) {
    if (data[i] == nullptr || !is_known(attributes[i])) return CUDA_ERROR_INVALID_VALUE;
    std::memset(data[i], 0, bytes_of(attributes[i]));
    if (!known.nothing()) answer(known, attributes[i], data[i]);
  }
  return CUDA_SUCCESS;
}

CUresult pointer_set_attribute(const void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  if (const CUresult result = check_initialized()) return result;
  if (value == nullptr || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
  unsigned wanted = 0;
  std::memcpy(&wanted, value, sizeof wanted);
  const std::scoped_lock lock(memory_mutex());
  bool* const set = sync_memops(look_up(address));
  if (set == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *set = wanted != 0;
  return CUDA_SUCCESS;
}

CUresult memory_range(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  if (const CUresult result = check_initialized()) return result;
  const std::scoped_lock lock(memory_mutex());
  const Known known = look_up(address);
  const bool allocated = known.allocation != nullptr;
  if (!allocated && known.mapping == nullptr) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = allocated ? known.allocated_at : known.mapped_at;
  if (bytes != nullptr) *bytes = allocated ? known.allocation->bytes : known.mapping->bytes;
  return CUDA_SUCCESS;
}

// Only memory of cuMemAlloc can be shared this way, not that of pools or of cuMemMap.
CUresult ipc_get_handle(CUipcMemHandle* handle, CUdeviceptr address) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  const std::scoped_lock lock(memory_mutex());
  const auto allocation = allocations().find(address);
  if (handle == nullptr || allocation == allocations().end() || allocation->second.kind != Allocation::Kind::Plain) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *handle = {};
  return CUDA_SUCCESS;
}

}  // namespace simcuda
