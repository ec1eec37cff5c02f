// What cuMemAlloc, the pools and graphs have handed out. pre of every function: memory_mutex() held.
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
  simcuda::Graph* graph = nullptr;  // of Kind::Graph, as long as there is one
  Context* context = nullptr;       // that it belongs to and ends with; null: none, as memory of pools and graphs
  std::uint64_t context_id = 0;     // of `context` when it was allocated
  std::uint64_t buffer_id = 0;      // never used twice
  bool sync_memops = false;         // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
};

std::map<CUdeviceptr, Allocation>& allocations();
// The allocation that holds the address; end() for none.
std::map<CUdeviceptr, Allocation>::iterator find_allocation(CUdeviceptr address);

// Enters what was just allocated, with a buffer id of its own.
void note_allocation(CUdeviceptr address, Allocation allocation);
// Makes it one that belongs to the context, or to its primary one if it is a green context.
Allocation owned_by(Context& context, Allocation allocation);

// Ends an allocation; its bytes are free for all after `after`.
void end_allocation(std::map<CUdeviceptr, Allocation>::iterator allocation, Point after);

// What a reset or destroyed context leaves behind: not the memory of pools and graphs, which is not a context's.
void drop_allocations(std::uint64_t context_id);

}  // namespace simcuda
