// What cuMemAlloc, the pools and graphs have handed out. pre of every function: memory_mutex() held.
#pragma once

#include <cstdint>
#include <map>

#include "tests/simcuda/driver/heap.h"

namespace simcuda {

struct Pool;

struct Allocation {
  enum class Kind { Plain, Pool, Graph };
  Kind kind = Kind::Plain;
  std::uint64_t bytes = 0;
  int device = 0;
  ChunkHeap* heap = nullptr;
  simcuda::Pool* pool = nullptr;  // of Kind::Pool
  std::uint64_t context_id = 0;
};

std::map<CUdeviceptr, Allocation>& allocations();
// The allocation that holds the address; end() for none.
std::map<CUdeviceptr, Allocation>::iterator find_allocation(CUdeviceptr address);

// Ends an allocation; its bytes are free for all after `after`.
void end_allocation(std::map<CUdeviceptr, Allocation>::iterator allocation, Point after);

// What a reset or destroyed context leaves behind; with `pools`, the device's pool memory too.
void drop_allocations(std::uint64_t context_id, int device, bool pools);

// Pinned host memory (cuMemHostAlloc): asynchronous copies use it in place.
bool is_pinned(const void* memory, std::uint64_t bytes);

}  // namespace simcuda
