// SPDX-License-Identifier: Apache-2.0
// Devices and their physical memory: for each a sparse file in memory, so that a device costs only what is touched.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/simcuda/driver/api.h"
#include "tests/simcuda/driver/config.h"
#include "tests/simcuda/driver/context.h"

namespace simcuda {

// The devices share the addresses of this process.
inline void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

inline constexpr unsigned kDeviceMultiprocessors = 132;

class ChunkHeap;
struct Pool;

// Physical memory in one piece. A handle of cuMemCreate names one, and the heaps are made of them.
struct Extent {
  std::uint64_t id = 0;
  int device = 0;
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;  // in its file; in the device's file no offset is used twice
  int file = -1;             // a file of its own, which other processes may share; -1: the device's
  int references = 0;        // to the program's handle
  int mappings = 0;
  bool from_program = false;  // made by cuMemCreate
  bool on_host = false;       // takes none of this process's device memory
  CUmemAllocationProp properties{};
};

struct Device {
  int ordinal = 0;
  int file = -1;
  std::uint64_t next_offset = 0;
  std::uint64_t physical_bytes = 0;
  SimcudaCounters counters{};
  Context primary;
  std::unique_ptr<ChunkHeap> plain;  // the heap of cuMemAlloc
  Pool* default_pool = nullptr;
  Pool* current_pool = nullptr;
  std::vector<ChunkHeap*> heaps;  // the plain one, and each pool's
};

// Guards every memory structure: devices, extents, reservations, mappings, heaps, pools. It is taken after
// stream_mutex(), never before it.
std::mutex& memory_mutex();

int devices_present();
Device* find_device(int ordinal);  // null when there is no such device
void create_devices();             // called once, by cuInit

// A new id for an extent or an allocation, never given out twice. Pre: memory_mutex() is held.
std::uint64_t next_memory_id();

// Takes physical memory. Before it fails with CUDA_ERROR_OUT_OF_MEMORY, heaps give back what they do not use. Pre:
// memory_mutex() is held; `bytes` is a multiple of kPageBytes.
CUresult create_extent(Device& device, std::uint64_t bytes, Extent** extent);

// Memory in a file of its own, which the extent takes over. Another process made it, and it is that process's device
// memory.
Extent* create_shared_extent(Device& device, std::uint64_t bytes, int file);

// The same for memory on the host that devices may touch. It takes no device memory and never fails.
Extent* create_host_extent(Device& device, std::uint64_t bytes);

inline std::uint64_t round_to_pages(std::uint64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

// Gives the memory back if neither a handle nor a mapping holds it. Pre: memory_mutex() is held.
void drop_if_unused(Extent* extent);

}  // namespace simcuda
