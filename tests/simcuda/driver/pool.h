// SPDX-License-Identifier: Apache-2.0
// Memory pools: the default one of each device, and those that the program makes.
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
  int reuse[3] = {1, 1, 1};  // kept and answered; only the last one changes reuse, the others are taken as off
  std::uint64_t live = 0;
  CUmemAllocationHandleType handle_types = CU_MEM_HANDLE_TYPE_NONE;  // how the pool may be exported
  const Pool* source = nullptr;  // of an imported pool: the pool whose memory it shares; it allocates nothing itself
  bool destroyed = false;
};

// Makes a pool of the device that lives as long as the process. Pre: memory_mutex() is held, or cuInit has not
// returned.
Pool* make_pool(Device& device);

inline CUmemoryPool handle_of(const Pool* pool) { return pool == nullptr ? nullptr : pool->handle; }

// The pool behind a handle, or null. Pre: memory_mutex() is held.
Pool* find_pool(CUmemoryPool handle);

// Done by every synchronization: pools give back what they keep beyond their release threshold.
void trim_to_threshold(int device);

}  // namespace simcuda
