// Allocation and its opposite, by cuMemAlloc and by pools, and questions about pointers.
#include "tests/simcuda/driver/allocation.h"

#include <cstdlib>
#include <iterator>

#include "tests/simcuda/driver/capture.h"
#include "tests/simcuda/driver/pool.h"
#include "tests/simcuda/driver/stream.h"

namespace simcuda {
namespace {

using Allocations = std::map<CUdeviceptr, Allocation>;

std::map<std::uintptr_t, std::uint64_t>& pinned() {
  static auto* const all = new std::map<std::uintptr_t, std::uint64_t>;
  return *all;
}

// Memory that belongs to the graph the stream captures: its own range, mapped at once.
CUresult allocate_in_capture(Stream& stream, Device& device, std::uint64_t bytes, CUdeviceptr* address) {
  const std::scoped_lock streams(stream_mutex());
  const std::scoped_lock lock(memory_mutex());
  if (stream.capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  ChunkHeap& heap = *device.plain;
  if (const CUresult result = heap.allocate(bytes, nullptr, address)) return result;
  allocations()[*address] = {Allocation::Kind::Graph, bytes, device.ordinal, &heap, nullptr, stream.context->id};
  stream.capture->graph->memory.push_back(*address);
  return CUDA_SUCCESS;
}

bool is_capturing(const Stream& stream) {
  const std::scoped_lock lock(stream_mutex());
  return stream.capture != nullptr;
}

// `handle` null: the current pool of the stream's device.
CUresult allocate_from_pool(CUdeviceptr* address, std::uint64_t bytes, CUmemoryPool handle, CUstream stream_handle) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = enter(&context)) return result;
  if (address == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = find_stream(*context, stream_handle, &stream)) return result;
  Device& device = *find_device(stream->context->device);
  if (shall_fail(SIMCUDA_ALLOC)) return CUDA_ERROR_OUT_OF_MEMORY;
  if (is_capturing(*stream)) return allocate_in_capture(*stream, device, bytes, address);
  if (const CUresult result = check_safe_during_capture()) return result;
  const std::scoped_lock lock(memory_mutex());
  Pool* const pool = handle == nullptr ? device.current_pool : find_pool(handle);
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = pool->heap->allocate(bytes, stream->timeline.get(), address)) return result;
  pool->live += 1;
  pool->device->counters.pool_allocs += 1;
  allocations()[*address] = {Allocation::Kind::Pool, bytes, pool->device->ordinal, pool->heap.get(), pool, context->id};
  return CUDA_SUCCESS;
}

CUresult answer_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr address, const Mapping& mapping,
                          CUdeviceptr mapped_at) {
  const auto allocation = find_allocation(address);
  const bool allocated = allocation != allocations().end();
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(data) = CU_MEMORYTYPE_DEVICE;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      *static_cast<CUdeviceptr*>(data) = address;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(data) = mapping.extent->device;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *static_cast<CUdeviceptr*>(data) = allocated ? allocation->first : mapped_at;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<size_t*>(data) = allocated ? allocation->second.bytes : mapping.bytes;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
      *static_cast<bool*>(data) = true;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      *static_cast<bool*>(data) = false;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      *static_cast<int*>(data) = allocated && allocation->second.kind == Allocation::Kind::Plain;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *static_cast<CUcontext*>(data) = allocated ? handle_of(&find_device(mapping.extent->device)->primary) : nullptr;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      *static_cast<CUmemoryPool*>(data) =
          allocated ? reinterpret_cast<CUmemoryPool>(allocation->second.pool) : CUmemoryPool{};
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

Allocations& allocations() {
  static auto* const all = new Allocations;
  return *all;
}

Allocations::iterator find_allocation(CUdeviceptr address) {
  auto found = allocations().upper_bound(address);
  if (found == allocations().begin()) return allocations().end();
  --found;
  return address - found->first < found->second.bytes ? found : allocations().end();
}

void end_allocation(Allocations::iterator allocation, Point after) {
  const auto [address, old] = *allocation;
  allocations().erase(allocation);
  if (old.pool != nullptr) old.pool->live -= 1;
  find_device(old.device)->counters.frees += 1;
  const bool at_once = after.passed();
  old.heap->free(address, std::move(after));
  if (old.kind != Allocation::Kind::Pool && at_once) old.heap->trim(0);
}

void drop_allocations(std::uint64_t context_id, int device, bool pools) {
  const std::scoped_lock lock(memory_mutex());
  for (auto at = allocations().begin(); at != allocations().end();) {
    const auto next = std::next(at);
    const bool of_pool = at->second.kind == Allocation::Kind::Pool;
    const bool ends = of_pool ? pools && at->second.device == device : at->second.context_id == context_id;
    if (ends) end_allocation(at, {});
    at = next;
  }
}

bool is_pinned(const void* memory, std::uint64_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  auto found = pinned().upper_bound(address);
  if (found == pinned().begin()) return false;
  --found;
  return address + bytes <= found->first + found->second;
}

CUresult memory_alloc(CUdeviceptr* address, size_t bytes) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  if (address == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = check_safe_during_capture()) return result;
  if (shall_fail(SIMCUDA_ALLOC)) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::scoped_lock lock(memory_mutex());
  Device& device = *find_device(context->device);
  if (const CUresult result = device.plain->allocate(bytes, nullptr, address)) return result;
  device.counters.allocs += 1;
  allocations()[*address] = {Allocation::Kind::Plain, bytes, device.ordinal, device.plain.get(), nullptr, context->id};
  return CUDA_SUCCESS;
}

// Waits for the device, as the real one does, then frees; also what pools allocated.
CUresult memory_free(CUdeviceptr address) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  if (address == 0) return CUDA_SUCCESS;
  if (const CUresult result = check_safe_during_capture()) return result;
  {
    const std::scoped_lock lock(memory_mutex());
    if (!allocations().contains(address)) return CUDA_ERROR_INVALID_VALUE;
  }
  synchronize(*context);
  const std::scoped_lock lock(memory_mutex());
  const auto allocation = allocations().find(address);
  if (allocation == allocations().end()) return CUDA_ERROR_INVALID_VALUE;
  end_allocation(allocation, {});
  return CUDA_SUCCESS;
}

CUresult alloc_async(CUdeviceptr* address, size_t bytes, CUstream stream) {
  return allocate_from_pool(address, bytes, nullptr, stream);
}

CUresult alloc_from_pool_async(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) {
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return allocate_from_pool(address, bytes, pool, stream);
}

CUresult free_async(CUdeviceptr address, CUstream stream_handle) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = enter(&context)) return result;
  if (address == 0) return CUDA_SUCCESS;
  if (const CUresult result = find_stream(*context, stream_handle, &stream)) return result;
  {
    const std::scoped_lock lock(memory_mutex());
    const auto allocation = allocations().find(address);
    if (allocation == allocations().end()) return CUDA_ERROR_INVALID_VALUE;
    // The graph keeps what it allocated until it is destroyed.
    if (allocation->second.kind == Allocation::Kind::Graph) return CUDA_SUCCESS;
  }
  Point freed;
  if (const CUresult result = submit_eager(*stream, {}, &freed)) return result;
  const std::scoped_lock lock(memory_mutex());
  const auto allocation = allocations().find(address);
  if (allocation == allocations().end()) return CUDA_ERROR_INVALID_VALUE;
  end_allocation(allocation, std::move(freed));
  return CUDA_SUCCESS;
}

CUresult memory_range(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  if (const CUresult result = check_initialized()) return result;
  const std::scoped_lock lock(memory_mutex());
  const auto allocation = find_allocation(address);
  const auto mapping = find_mapping(address);
  const bool allocated = allocation != allocations().end();
  if (!allocated && (mapping == mappings().end() || !mapping->second.from_program)) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = allocated ? allocation->first : mapping->first;
  if (bytes != nullptr) *bytes = allocated ? allocation->second.bytes : mapping->second.bytes;
  return CUDA_SUCCESS;
}

CUresult host_alloc(void** memory, size_t bytes, unsigned) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  if (memory == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  *memory = std::malloc(bytes);
  if (*memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::scoped_lock lock(memory_mutex());
  pinned()[reinterpret_cast<std::uintptr_t>(*memory)] = bytes;
  return CUDA_SUCCESS;
}

CUresult host_alloc_plain(void** memory, size_t bytes) { return host_alloc(memory, bytes, 0); }

CUresult host_free(void* memory) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  {
    const std::scoped_lock lock(memory_mutex());
    if (pinned().erase(reinterpret_cast<std::uintptr_t>(memory)) == 0) return CUDA_ERROR_INVALID_VALUE;
  }
  synchronize(*context);
  std::free(memory);
  return CUDA_SUCCESS;
}

CUresult pointer_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  if (const CUresult result = check_initialized()) return result;
  const std::scoped_lock lock(memory_mutex());
  const auto mapping = find_mapping(address);
  if (data == nullptr || mapping == mappings().end()) return CUDA_ERROR_INVALID_VALUE;
  return answer_attribute(data, attribute, address, mapping->second, mapping->first);
}

CUresult pointer_attributes(unsigned count, CUpointer_attribute* attributes, void** data, CUdeviceptr address) {
  for (unsigned i = 0; i < count; ++i) {
    if (const CUresult result = pointer_attribute(data[i], attributes[i], address)) return result;
  }
  return CUDA_SUCCESS;
}

// Memory of cuMemAlloc alone can be shared this way: not that of pools, and not what cuMemMap put in place.
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
