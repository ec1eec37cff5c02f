// Memory pools: the default one of each device, and those the program makes.
#pragma once

#include <cstdint>
#include <memory>

#include "tests/simcuda/driver/heap.h"

namespace simcuda {

struct Pool {
  CUmemoryPool handle = nullptr;
  Device* device = nullptr;
  std::unique_ptr<ChunkHeap> heap;
  std::uint64_t release_threshold = 0;
  int reuse[3] = {1, 1, 1};  // kept and answered; reuse follows the strictest rule whatever they say
  std::uint64_t live = 0;
  CUmemAllocationHandleType handle_types = CU_MEM_HANDLE_TYPE_NONE;  // that the pool may be exported by
  const Pool* source = nullptr;  // of an imported pool: the one it shares memory with; it allocates nothing itself
  bool destroyed = false;
};

// A pool of the device; lives as long as the process. pre: memory_mutex() held, or before cuInit returns.
Pool* make_pool(Device& device);

inline CUmemoryPool handle_of(const Pool* pool) { return pool == nullptr ? nullptr : pool->handle; }

// The pool behind a handle, or null. pre: memory_mutex() held.
Pool* find_pool(CUmemoryPool handle);

// What every synchronisation does: pools keep no more than their release threshold.
void trim_to_threshold(int device);

}  // namespace simcuda
