// SPDX-License-Identifier: Apache-2.0
// Virtual memory management. As measured on the real driver: a handle is mapped whole or not at all, and neither
// mapping nor unmapping waits for work.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "tests/simcuda/driver/address_space.h"
#include "tests/simcuda/driver/capture.h"

namespace simcuda {
namespace {

bool is_pages(std::uint64_t value) { return value % kPageBytes == 0; }

// The program's handles: numbers, so that a stale one is noticed.
std::map<CUmemGenericAllocationHandle, Extent*>& handles() {
  static auto* const all = new std::map<CUmemGenericAllocationHandle, Extent*>;
  return *all;
}

Extent* extent_of(CUmemGenericAllocationHandle handle) {
  const auto found = handles().find(handle);
  return found == handles().end() ? nullptr : found->second;
}

CUresult check_properties(const CUmemAllocationProp* properties) {
  if (properties == nullptr || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
      properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return find_device(properties->location.id) == nullptr ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

bool decode_access(const CUmemAccessDesc* access, size_t count, unsigned before, unsigned* after) {
  *after = before;
  for (size_t i = 0; i < count; ++i) {
    const int device = access[i].location.id;
    if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || find_device(device) == nullptr) return false;
    if (access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
      *after |= 1U << device;
    } else if (access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) {
      *after &= ~(1U << device);
    } else {
      return false;
    }
  }
  return true;
}

// What follows the memory in the file of a handle that may be shared.
struct Shared {
  char magic[16];
  int device;
  std::uint64_t bytes;
  CUmemAllocationProp properties;
};
constexpr char kMemoryMagic[16] = "simcuda memory";

// Makes a file for `bytes`, with what another process must know of them; -1: it could not be made.
int make_file(int device, std::uint64_t bytes, const CUmemAllocationProp& properties) {
  Shared shared{{}, device, bytes, properties};
  std::memcpy(shared.magic, kMemoryMagic, sizeof kMemoryMagic);
  const int file = memfd_create("simcuda memory", MFD_CLOEXEC);
  const auto end = static_cast<off_t>(bytes);
  if (file >= 0 && ftruncate(file, end) == 0 && pwrite(file, &shared, sizeof shared, end) == sizeof shared) return file;
  if (file >= 0) close(file);
  return -1;
}

}  // namespace

CUresult memory_granularity(size_t* bytes, const CUmemAllocationProp* properties, CUmemAllocationGranularity_flags) {
  if (const CUresult result = check_initialized()) return result;
  if (const CUresult result = check_properties(properties)) return result;
  *bytes = kPageBytes;
  return CUDA_SUCCESS;
}

CUresult address_reserve(CUdeviceptr* base, size_t bytes, size_t alignment, CUdeviceptr wanted,
                         unsigned long long flags) {
  if (const CUresult result = check_initialized()) return result;
  const bool bad_alignment = (alignment & (alignment - 1)) != 0;
  if (base == nullptr || bytes == 0 || !is_pages(bytes) || bad_alignment || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const std::scoped_lock lock(memory_mutex());
  *base = reserve(bytes, std::max<std::uint64_t>(alignment, kPageBytes), wanted);
  if (*base == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  note_reservation(*base, bytes);
  return CUDA_SUCCESS;
}

CUresult address_free(CUdeviceptr base, size_t bytes) {
  if (const CUresult result = check_initialized()) return result;
  const std::scoped_lock lock(memory_mutex());
  if (!forget_reservation(base, bytes)) return CUDA_ERROR_INVALID_VALUE;
  unreserve(base, bytes);
  return CUDA_SUCCESS;
}

CUresult memory_create(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* properties,
                       unsigned long long flags) {
  if (const CUresult result = check_initialized()) return result;
  if (handle == nullptr || bytes == 0 || !is_pages(bytes) || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = check_properties(properties)) return result;
  if (const CUresult result = check_safe_during_capture()) return result;
  slow_map();
  if (shall_fail(SIMCUDA_CREATE)) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::scoped_lock lock(memory_mutex());
  Device& device = *find_device(properties->location.id);
  Extent* extent = nullptr;
  if (const CUresult result = create_extent(device, bytes, &extent)) return result;
  extent->references = 1;
  extent->from_program = true;
  extent->properties = *properties;
  device.counters.creates += 1;
  device.counters.rdma_creates += properties->allocFlags.gpuDirectRDMACapable != 0 ? 1 : 0;
  device.counters.handle_bytes += bytes;
  device.counters.handle_peak_bytes = std::max(device.counters.handle_peak_bytes, device.counters.handle_bytes);
  if (properties->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    extent->file = make_file(device.ordinal, bytes, *properties);
    extent->offset = extent->file >= 0 ? 0 : extent->offset;
  }
  *handle = extent->id;
  handles()[*handle] = extent;
  return CUDA_SUCCESS;
}

CUresult memory_export(void* shared, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                       unsigned long long flags) {
  if (const CUresult result = check_initialized()) return result;
  const std::scoped_lock lock(memory_mutex());
  const Extent* const extent = extent_of(handle);
  if (shared == nullptr || extent == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || extent->file < 0) return CUDA_ERROR_INVALID_VALUE;
  const int file = fcntl(extent->file, F_DUPFD_CLOEXEC, 0);
  if (file < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *static_cast<int*>(shared) = file;
  return CUDA_SUCCESS;
}

// Imports memory, which still counts as that of the process that made it.
CUresult memory_import(CUmemGenericAllocationHandle* handle, void* shared, CUmemAllocationHandleType type) {
  if (const CUresult result = check_initialized()) return result;
  const int given = static_cast<int>(reinterpret_cast<std::intptr_t>(shared));
  Shared data{};
  const off_t end = lseek(given, 0, SEEK_END) - static_cast<off_t>(sizeof data);
  if (handle == nullptr || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || end < 0 ||
      pread(given, &data, sizeof data, end) != sizeof data ||
      std::memcmp(data.magic, kMemoryMagic, sizeof kMemoryMagic) != 0 ||
      data.bytes != static_cast<std::uint64_t>(end)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::scoped_lock lock(memory_mutex());
  Device* const device = find_device(data.device);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const int file = fcntl(given, F_DUPFD_CLOEXEC, 0);
  if (file < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  Extent* const extent = create_shared_extent(*device, data.bytes, file);
  extent->references = 1;
  extent->from_program = true;
  extent->properties = data.properties;
  *handle = extent->id;
  handles()[*handle] = extent;
  return CUDA_SUCCESS;
}

CUresult memory_release(CUmemGenericAllocationHandle handle) {
  if (const CUresult result = check_initialized()) return result;
  if (const CUresult result = check_safe_during_capture()) return result;
  const std::scoped_lock lock(memory_mutex());
  Extent* const extent = extent_of(handle);
  if (extent == nullptr) return CUDA_ERROR_INVALID_VALUE;
  find_device(extent->device)->counters.releases += 1;
  if (--extent->references == 0) handles().erase(handle);
  drop_if_unused(extent);
  return CUDA_SUCCESS;
}

CUresult memory_retain(CUmemGenericAllocationHandle* handle, void* address) {
  if (const CUresult result = check_initialized()) return result;
  const std::scoped_lock lock(memory_mutex());
  const auto mapping = find_mapping(reinterpret_cast<CUdeviceptr>(address));
  if (mapping == mappings().end() || !mapping->second.from_program) return CUDA_ERROR_INVALID_VALUE;
  Extent* const extent = mapping->second.extent;
  extent->references += 1;
  *handle = extent->id;
  handles()[*handle] = extent;
  return CUDA_SUCCESS;
}

CUresult memory_properties(CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle) {
  if (const CUresult result = check_initialized()) return result;
  const std::scoped_lock lock(memory_mutex());
  const Extent* const extent = extent_of(handle);
  if (extent == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *properties = extent->properties;
  return CUDA_SUCCESS;
}

CUresult memory_map(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                    unsigned long long flags) {
  if (const CUresult result = check_initialized()) return result;
  if (const CUresult result = check_safe_during_capture()) return result;
  slow_map();
  if (shall_fail(SIMCUDA_MAP)) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::scoped_lock lock(memory_mutex());
  Extent* const extent = extent_of(handle);
  std::uint64_t reserved_bytes = 0;
  if (extent == nullptr || flags != 0 || !is_pages(at) || find_reservation(at, bytes, &reserved_bytes) == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (offset != 0 || bytes != extent->bytes) return CUDA_ERROR_NOT_SUPPORTED;
  const auto next = mappings().lower_bound(at);
  const bool taken = find_mapping(at) != mappings().end() || (next != mappings().end() && next->first < at + bytes);
  if (taken) return CUDA_ERROR_INVALID_VALUE;
  if (!map(at, extent, 0, true)) return CUDA_ERROR_OUT_OF_MEMORY;
  find_device(extent->device)->counters.maps += 1;
  return CUDA_SUCCESS;
}

CUresult memory_unmap(CUdeviceptr at, size_t bytes) {
  if (const CUresult result = check_initialized()) return result;
  if (const CUresult result = check_safe_during_capture()) return result;
  const std::scoped_lock lock(memory_mutex());
  Mappings::iterator first;
  Mappings::iterator last;
  if (!find_exact(at, bytes, &first, &last)) return CUDA_ERROR_INVALID_VALUE;
  if (std::any_of(first, last, [](const auto& mapping) { return !mapping.second.from_program; })) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  find_device(first->second.extent->device)->counters.unmaps += 1;
  while (first != last) unmap(first++);
  return CUDA_SUCCESS;
}

CUresult memory_set_access(CUdeviceptr at, size_t bytes, const CUmemAccessDesc* access, size_t count) {
  if (const CUresult result = check_initialized()) return result;
  if (const CUresult result = check_safe_during_capture()) return result;
  slow_map();
  const std::scoped_lock lock(memory_mutex());
  Mappings::iterator first;
  Mappings::iterator last;
  if (access == nullptr || count == 0 || !find_exact(at, bytes, &first, &last)) return CUDA_ERROR_INVALID_VALUE;
  unsigned after = 0;
  if (!decode_access(access, count, 0, &after)) return CUDA_ERROR_INVALID_VALUE;
  find_device(first->second.extent->device)->counters.set_accesses += 1;
  for (; first != last; ++first) {
    decode_access(access, count, first->second.access, &after);
    set_access(first, after);
  }
  return CUDA_SUCCESS;
}

CUresult memory_get_access(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr at) {
  if (const CUresult result = check_initialized()) return result;
  const std::scoped_lock lock(memory_mutex());
  const auto mapping = find_mapping(at);
  if (mapping == mappings().end()) return CUDA_ERROR_INVALID_VALUE;
  if (find_device(location->id) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  // As measured on an H200 (driver 580): memory that the program did not map has no access flags.
  const bool allowed = mapping->second.from_program && (mapping->second.access >> location->id & 1) != 0;
  *flags = allowed ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

}  // namespace simcuda
