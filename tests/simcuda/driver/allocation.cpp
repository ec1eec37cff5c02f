// SPDX-License-Identifier: Apache-2.0
#include "tests/simcuda/driver/allocation.h"

#include <iterator>

#include "tests/simcuda/driver/capture.h"
#include "tests/simcuda/driver/graph.h"
#include "tests/simcuda/driver/mapped_allocation.h"
#include "tests/simcuda/driver/pool.h"
#include "tests/simcuda/driver/stream.h"

namespace simcuda {
namespace {

using Allocations = std::map<CUdeviceptr, Allocation>;

// Frees need no current context: the address names one (H200, driver 580).
CUresult enter_owner(CUdeviceptr address, Context** context) {
  const std::scoped_lock lock(memory_mutex());
  const auto allocation = allocations().find(address);
  if (allocation == allocations().end() || allocation->second.context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *context = allocation->second.context;
  if (const CUresult result = check_active(**context)) return result;
  return error_of(**context);
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

void note_allocation(CUdeviceptr address, Allocation allocation) {
  allocation.buffer_id = next_memory_id();
  allocations()[address] = allocation;
}

Allocation owned_by(Context& context, Allocation allocation) {
  allocation.context = &root_of(context);
  allocation.context_id = allocation.context->id;
  return allocation;
}

void end_allocation(Allocations::iterator allocation, Point after) {
  const auto [address, old] = *allocation;
  allocations().erase(allocation);
  if (old.pool != nullptr) old.pool->live -= 1;
  find_device(old.device)->counters.frees += 1;
  if (old.heap == nullptr) return end_mapped(address, std::move(after));
  const bool at_once = after.passed();
  old.heap->free(address, std::move(after));
  if (old.kind != Allocation::Kind::Pool && at_once) old.heap->trim(0);
}

void drop_allocations(std::uint64_t context_id) {
  const std::scoped_lock lock(memory_mutex());
  for (auto at = allocations().begin(); at != allocations().end();) {
    const auto next = std::next(at);
    if (at->second.context != nullptr && at->second.context_id == context_id) end_allocation(at, {});
    at = next;
  }
}

CUresult memory_alloc(CUdeviceptr* address, size_t bytes) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  if (const CUresult result = check_safe_during_capture()) return result;
  if (address == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  *address = 0;
  if (shall_fail(SIMCUDA_ALLOC)) return CUDA_ERROR_OUT_OF_MEMORY;
  context->room_waits.wait();
  const std::scoped_lock lock(memory_mutex());
  if (const CUresult result = check_active(*context)) return result;
  Device& device = *find_device(context->device);
  if (const CUresult result = device.plain->allocate(bytes, nullptr, address)) return result;
  device.counters.allocs += 1;
  note_allocation(*address, owned_by(*context, {Allocation::Kind::Plain, bytes, device.ordinal, device.plain.get()}));
  return CUDA_SUCCESS;
}

// Allocates rows that begin at multiples of the texture alignment, 512 bytes.
CUresult memory_alloc_pitch(CUdeviceptr* address, size_t* pitch, size_t width, size_t height, unsigned element_bytes) {
  constexpr std::uint64_t kAlignment = 512;
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  if (address == nullptr || pitch == nullptr || width == 0 || height == 0) return CUDA_ERROR_INVALID_VALUE;
  if (element_bytes != 4 && element_bytes != 8 && element_bytes != 16) return CUDA_ERROR_INVALID_VALUE;
  const std::uint64_t most = config().device_bytes;
  if (width > most || height > most / width) return CUDA_ERROR_OUT_OF_MEMORY;  // so that the product does not wrap
  const std::uint64_t row = (width + kAlignment - 1) / kAlignment * kAlignment;
  if (height > most / row) return CUDA_ERROR_OUT_OF_MEMORY;
  if (const CUresult result = memory_alloc(address, row * height)) return result;
  *pitch = row;
  return CUDA_SUCCESS;
}

// Waits for the device, then frees. As the reference of cuMemFree says, it does not wait when it frees memory of a
// pool: the caller must know that all its uses have ended.
CUresult memory_free(CUdeviceptr address) {
  Context* context = nullptr;
  CUresult entered = enter(&context);
  if (entered == CUDA_ERROR_INVALID_CONTEXT) entered = enter_owner(address, &context);
  if (entered != CUDA_SUCCESS) return entered;
  if (const CUresult result = check_safe_during_capture()) return result;
  if (address == 0) return CUDA_SUCCESS;
  bool waits = false;
  {
    const std::scoped_lock lock(memory_mutex());
    const auto allocation = allocations().find(address);
    if (allocation == allocations().end()) return CUDA_ERROR_INVALID_VALUE;
    waits = allocation->second.kind != Allocation::Kind::Pool;
  }
  if (waits) {
    synchronize(root_of(*context));
    if (const CUresult result = error_of(*context)) return result;  // the error of the work that was waited for
  }
  const std::scoped_lock lock(memory_mutex());
  const auto allocation = allocations().find(address);
  if (allocation == allocations().end()) return CUDA_ERROR_INVALID_VALUE;
  if (allocation->second.kind == Allocation::Kind::Graph) return free_after_launch(allocation, {});
  end_allocation(allocation, {});
  return CUDA_SUCCESS;
}

}  // namespace simcuda
