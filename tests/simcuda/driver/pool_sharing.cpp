// SPDX-License-Identifier: Apache-2.0
#include "tests/simcuda/driver/pool_sharing.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "tests/simcuda/driver/mapped_allocation.h"

namespace simcuda {
namespace {

// The contents of an exported descriptor, which is a file in memory, and the beginning of a shared pointer's opaque
// data.
struct Exported {
  char magic[16];
  std::int64_t process;
  const Pool* pool;
  CUdeviceptr address;  // of a pointer
};
static_assert(sizeof(Exported) <= sizeof(CUmemPoolPtrExportData));

constexpr char kPoolMagic[16] = "simcuda pool v1";

Exported exported(const Pool* pool, CUdeviceptr address) {
  Exported data{{}, getpid(), pool, address};
  std::memcpy(data.magic, kPoolMagic, sizeof kPoolMagic);
  return data;
}

bool is_genuine(const Exported& data) {
  return std::memcmp(data.magic, kPoolMagic, sizeof kPoolMagic) == 0 && data.process == getpid();
}

}  // namespace

void set_imported_access(const Pool& pool) {
  for (const auto& [address, allocation] : allocations()) {
    if (allocation.pool == &pool) set_access(find_mapping(address), pool.heap->access());
  }
}

CUresult pool_export(void* handle, CUmemoryPool pool_handle, CUmemAllocationHandleType type, unsigned long long flags) {
  if (const CUresult result = check_initialized()) return result;
  const std::scoped_lock lock(memory_mutex());
  const Pool* const pool = find_pool(pool_handle);
  if (handle == nullptr || pool == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || pool->handle_types != type) return CUDA_ERROR_INVALID_VALUE;
  const Exported data = exported(pool, 0);
  const int file = memfd_create("simcuda pool", MFD_CLOEXEC);
  if (file < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  if (pwrite(file, &data, sizeof data, 0) != sizeof data) {
    close(file);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *static_cast<int*>(handle) = file;
  return CUDA_SUCCESS;
}

CUresult pool_import(CUmemoryPool* pool, void* handle, CUmemAllocationHandleType type, unsigned long long flags) {
  if (const CUresult result = check_initialized()) return result;
  Exported data{};
  const int file = static_cast<int>(reinterpret_cast<std::intptr_t>(handle));
  if (pool == nullptr || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (pread(file, &data, sizeof data, 0) != sizeof data || !is_genuine(data)) return CUDA_ERROR_INVALID_VALUE;
  const std::scoped_lock lock(memory_mutex());
  const Pool* const source = data.pool;  // of this process, where pools live forever
  if (source->destroyed) return CUDA_ERROR_INVALID_VALUE;
  Pool* const fresh = make_pool(*source->device);
  fresh->source = source;
  *pool = handle_of(fresh);
  return CUDA_SUCCESS;
}

CUresult pool_export_pointer(CUmemPoolPtrExportData* shared, CUdeviceptr address) {
  if (const CUresult result = check_initialized()) return result;
  const std::scoped_lock lock(memory_mutex());
  const auto allocation = allocations().find(address);
  if (shared == nullptr || allocation == allocations().end() || allocation->second.pool == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Pool* const pool = allocation->second.pool;
  if (pool->handle_types == CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_INVALID_VALUE;
  const Exported data = exported(pool, address);
  *shared = {};
  std::memcpy(shared, &data, sizeof data);
  return CUDA_SUCCESS;
}

CUresult pool_import_pointer(CUdeviceptr* address, CUmemoryPool pool_handle, CUmemPoolPtrExportData* shared) {
  if (const CUresult result = check_initialized()) return result;
  if (address == nullptr || shared == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Exported data{};
  std::memcpy(&data, shared, sizeof data);
  const std::scoped_lock lock(memory_mutex());
  Pool* const pool = find_pool(pool_handle);
  const auto original = allocations().find(data.address);
  if (pool == nullptr || pool->source == nullptr || !is_genuine(data)) return CUDA_ERROR_INVALID_VALUE;
  if (original == allocations().end() || original->second.pool != pool->source) return CUDA_ERROR_INVALID_VALUE;
  const auto mapping = find_mapping(data.address);
  const std::uint64_t into = data.address - mapping->first;
  const CUdeviceptr base = map_alone(mapping->second.extent, pool->heap->access());
  if (base == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = base + into;
  pool->live += 1;
  const Allocation& of = original->second;
  note_allocation(*address, {Allocation::Kind::Imported, of.bytes, of.device, nullptr, pool});
  return CUDA_SUCCESS;
}

}  // namespace simcuda
