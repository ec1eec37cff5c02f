// SPDX-License-Identifier: Apache-2.0
// Managed memory. It lies on the host until a device touches it, so it takes no device memory here. Every device and
// the host may touch it.
#include "tests/simcuda/driver/allocation.h"
#include "tests/simcuda/driver/capture.h"
#include "tests/simcuda/driver/mapped_allocation.h"

namespace simcuda {
namespace {

// Managed memory is refused beyond so many times a device's memory; a real system's limit depends on the host's memory.
constexpr std::uint64_t kMostDevices = 4;

}  // namespace

CUresult managed_alloc(CUdeviceptr* address, size_t bytes, unsigned flags) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  if (address == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = check_safe_during_capture()) return result;
  if (bytes / kMostDevices > config().device_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::scoped_lock lock(memory_mutex());
  if (const CUresult result = check_active(*context)) return result;
  Extent* const extent = create_host_extent(*find_device(context->device), round_to_pages(bytes));
  const CUdeviceptr base = map_alone(extent, (1U << devices_present()) - 1);
  if (base == 0) {
    drop_if_unused(extent);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  note_allocation(base, owned_by(*context, {Allocation::Kind::Managed, bytes, context->device}));
  *address = base;
  return CUDA_SUCCESS;
}

}  // namespace simcuda
