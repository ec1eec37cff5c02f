// SPDX-License-Identifier: Apache-2.0
#include "tests/simcuda/driver/device.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tests/simcuda/driver/heap.h"
#include "tests/simcuda/driver/pool.h"

namespace simcuda {
namespace {

std::vector<std::unique_ptr<Device>>& devices() {
  static auto* const all = new std::vector<std::unique_ptr<Device>>;
  return *all;
}

constexpr std::uint64_t kFileBytes = 1ULL << 60;  // sparse: only touched pages exist

void give_back_unused(Device& device) {
  for (ChunkHeap* heap : device.heaps) heap->trim(0);
}

Extent* make_extent(Device& device, std::uint64_t bytes) {
  auto* fresh = new Extent;
  fresh->id = next_memory_id();
  fresh->device = device.ordinal;
  fresh->bytes = bytes;
  fresh->offset = device.next_offset;
  device.next_offset += bytes;
  return fresh;
}

}  // namespace

std::mutex& memory_mutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

std::uint64_t next_memory_id() {
  static std::uint64_t next = 1;
  return next++;
}

int devices_present() { return static_cast<int>(devices().size()); }

Device* find_device(int ordinal) {
  return ordinal >= 0 && ordinal < devices_present() ? devices()[static_cast<std::size_t>(ordinal)].get() : nullptr;
}

void create_devices() {
  for (int ordinal = 0; ordinal < config().devices; ++ordinal) {
    auto device = std::make_unique<Device>();
    device->ordinal = ordinal;
    device->file = memfd_create("simcuda", MFD_CLOEXEC);
    if (device->file < 0 || ftruncate(device->file, static_cast<off_t>(kFileBytes)) != 0) return;
    device->plain = std::make_unique<ChunkHeap>(*device, kPageBytes, 1U << ordinal);
    device->heaps.push_back(device->plain.get());
    device->default_pool = make_pool(*device);
    device->current_pool = device->default_pool;
    devices().push_back(std::move(device));
  }
}

CUresult create_extent(Device& device, std::uint64_t bytes, Extent** extent) {
  const std::uint64_t total = config().device_bytes;
  const auto fits = [&] { return device.physical_bytes <= total - bytes; };
  if (bytes > total) return CUDA_ERROR_OUT_OF_MEMORY;  // nothing is given back for what cannot fit anyway
  if (!fits()) give_back_unused(device);
  if (!fits()) return CUDA_ERROR_OUT_OF_MEMORY;
  *extent = make_extent(device, bytes);
  device.physical_bytes += bytes;
  device.counters.physical_bytes = device.physical_bytes;
  device.counters.physical_peak_bytes = std::max(device.counters.physical_peak_bytes, device.physical_bytes);
  return CUDA_SUCCESS;
}

Extent* create_host_extent(Device& device, std::uint64_t bytes) {
  Extent* const extent = make_extent(device, bytes);
  extent->on_host = true;
  return extent;
}

Extent* create_shared_extent(Device& device, std::uint64_t bytes, int file) {
  Extent* const extent = create_host_extent(device, bytes);
  extent->file = file;
  extent->offset = 0;
  return extent;
}

void drop_if_unused(Extent* extent) {
  if (extent->references > 0 || extent->mappings > 0) return;
  Device& device = *find_device(extent->device);
  if (extent->file >= 0) {
    close(extent->file);
  } else {
    fallocate(device.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(extent->offset),
              static_cast<off_t>(extent->bytes));
  }
  if (!extent->on_host) device.physical_bytes -= extent->bytes;
  device.counters.physical_bytes = device.physical_bytes;
  if (extent->from_program && !extent->on_host) device.counters.handle_bytes -= extent->bytes;
  delete extent;
}

CUresult device_get(CUdevice* device, int ordinal) {
  if (const CUresult result = check_initialized()) return result;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (find_device(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult device_count(int* count) {
  if (const CUresult result = check_initialized()) return result;
  *count = devices_present();
  return CUDA_SUCCESS;
}

CUresult device_name(char* name, int length, CUdevice device) {
  if (const CUresult result = check_initialized()) return result;
  if (find_device(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(name, static_cast<std::size_t>(length), "simcuda");
  return CUDA_SUCCESS;
}

CUresult device_uuid_v2(CUuuid* uuid, CUdevice device) {
  if (const CUresult result = check_initialized()) return result;
  if (find_device(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  std::memset(uuid->bytes, 0, sizeof uuid->bytes);
  uuid->bytes[0] = static_cast<char>(device + 1);
  return CUDA_SUCCESS;
}

CUresult device_uuid(CUuuid* uuid, CUdevice device) { return device_uuid_v2(uuid, device); }

CUresult device_total_bytes(size_t* bytes, CUdevice device) {
  if (const CUresult result = check_initialized()) return result;
  if (find_device(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = config().device_bytes;
  return CUDA_SUCCESS;
}

CUresult device_attribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  if (const CUresult result = check_initialized()) return result;
  if (find_device(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
      *value = 1;
      break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = 9;
      break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = kDeviceMultiprocessors;
      break;
    default:  // no fabric handles among them
      *value = 0;
  }
  return CUDA_SUCCESS;
}

CUresult device_can_access_peer(int* can, CUdevice device, CUdevice peer) {
  if (const CUresult result = check_initialized()) return result;
  if (find_device(device) == nullptr || find_device(peer) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *can = device != peer;
  return CUDA_SUCCESS;
}

CUresult memory_info(size_t* free_bytes, size_t* total_bytes) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  const std::scoped_lock lock(memory_mutex());
  *total_bytes = config().device_bytes;
  *free_bytes = config().device_bytes - find_device(context->device)->physical_bytes;
  return CUDA_SUCCESS;
}

}  // namespace simcuda
