// SPDX-License-Identifier: Apache-2.0
// What cuMemAlloc, pools and graphs have handed out. Pre of every function: memory_mutex() is held.
#pragma once

#include <cstdint>
#include <map>

#include "tests/simcuda/driver/heap.h"

namespace simcuda {

struct Graph;
struct Pool;

struct Allocation {
  enum class Kind { Plain, Pool, Graph, Imported, Managed };
  Kind kind = Kind::Plain;
  std::uint64_t bytes = 0;
  int device = 0;
  ChunkHeap* heap = nullptr;        // null: a mapping of its own (mapped_allocation.h)
  simcuda::Pool* pool = nullptr;    // of Kind::Pool and Kind::Imported
  simcuda::Graph* graph = nullptr;  // of Kind::Graph, as long as the graph exists
  Context* context = nullptr;    // the context with which it ends; null for memory of pools and graphs, which has none
  std::uint64_t context_id = 0;  // id of `context` when it was allocated
  std::uint64_t buffer_id = 0;   // never used twice
  bool sync_memops = false;      // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
};

std::map<CUdeviceptr, Allocation>& allocations();
// The allocation that holds the address, or end().
std::map<CUdeviceptr, Allocation>::iterator find_allocation(CUdeviceptr address);

// Enters what was just allocated, with a buffer id of its own.
void note_allocation(CUdeviceptr address, Allocation allocation);
// The allocation, made one of the context, or of its primary context if it is a green context.
Allocation owned_by(Context& context, Allocation allocation);

// Ends an allocation. Any stream may use its bytes once `after` has passed.
void end_allocation(std::map<CUdeviceptr, Allocation>::iterator allocation, Point after);

// Ends the allocations that a reset or destroyed context leaves behind; memory of pools and graphs belongs to no
// context and stays.
void drop_allocations(std::uint64_t context_id);

}  // namespace simcuda
