// Devices and their physical memory: a sparse file in memory for each, so that a device costs what is touched.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/simcuda/driver/api.h"
#include "tests/simcuda/driver/config.h"
#include "tests/simcuda/driver/context.h"

namespace simcuda {

inline constexpr unsigned kDeviceMultiprocessors = 132;

class ChunkHeap;
struct Pool;

// Physical memory in one piece: what a handle of cuMemCreate names, and what the heaps are made of.
struct Extent {
  std::uint64_t id = 0;
  int device = 0;
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;  // in its file; never used twice in the device's
  int file = -1;             // its own, which other processes may share; -1: the device's
  int references = 0;        // of the program's handle
  int mappings = 0;
  bool from_program = false;  // by cuMemCreate
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
  std::unique_ptr<ChunkHeap> plain;  // cuMemAlloc
  Pool* default_pool = nullptr;
  Pool* current_pool = nullptr;
  std::vector<ChunkHeap*> heaps;  // the plain one, and each pool's
};

// Guards every memory structure: devices, extents, reservations, mappings, heaps, pools. Taken after stream_mutex()
// never before it.
std::mutex& memory_mutex();

int devices_present();
Device* find_device(int ordinal);  // null when there is no such device
void create_devices();             // by cuInit, once

// Of extents and allocations: never given out twice. pre: memory_mutex() held.
std::uint64_t next_memory_id();

// Takes physical memory; heaps give back what they do not use before it fails with CUDA_ERROR_OUT_OF_MEMORY.
// pre: memory_mutex() held, bytes a multiple of kPageBytes.
CUresult create_extent(Device& device, std::uint64_t bytes, Extent** extent);

// Memory in a file of its own, which the extent takes: from another process, whose device memory it is.
Extent* create_shared_extent(Device& device, std::uint64_t bytes, int file);

// The same for memory on the host that devices may touch: takes no device memory and never fails.
Extent* create_host_extent(Device& device, std::uint64_t bytes);

inline std::uint64_t round_to_pages(std::uint64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

// Gives the memory back once neither handle nor mapping holds it. pre: memory_mutex() held.
void drop_if_unused(Extent* extent);

}  // namespace simcuda
