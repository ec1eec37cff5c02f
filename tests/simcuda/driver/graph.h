// SPDX-License-Identifier: Apache-2.0
// Graphs: captured work in capture order, which is one valid order of its nodes, and the memory of their allocation
// nodes. Such memory has its addresses from the capture on, and bytes from the first launch on, so the first launch may
// run out of memory (the CUDA programming guide, graph memory nodes: memory is mapped before the node is reached).
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "tests/simcuda/driver/allocation.h"
#include "tests/simcuda/driver/timeline.h"

namespace simcuda {

struct Event;

struct GraphMemory {
  CUdeviceptr address = 0;
  std::uint64_t bytes = 0;  // whole pages
  int device = 0;
  bool freed_within = false;  // the graph has a free node for it
  bool mapped = false;
  bool live = false;  // launched, and not freed since
};

struct Graph {
  std::vector<std::function<void()>> nodes;
  std::vector<std::shared_ptr<Event>> records;  // recorded at the end of each launch; guarded by stream_mutex()
  std::vector<GraphMemory> memory;              // guarded by memory_mutex()
  std::vector<CUdeviceptr> foreign;             // memory of other graphs that this one frees; guarded by memory_mutex()
  std::weak_ptr<void> executable;               // the only one, of a graph with memory; guarded by stream_mutex()
  Point last;                                   // of the last launch; guarded by stream_mutex()

  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  // Live memory stays, as documented, until it is freed; the rest is given back. Pre: memory_mutex() is not held.
  ~Graph();
};

// An allocation node and a free node. Only memory of graphs can be freed in a graph, as documented for cuMemFreeAsync;
// for any other the result is CUDA_ERROR_INVALID_VALUE. Pre: memory_mutex() is held.
CUresult allocate_in_graph(Graph& graph, const Device& device, std::uint64_t bytes, CUdeviceptr* address);
CUresult free_in_graph(Graph& graph, CUdeviceptr address);

// Frees a graph's memory outside of graphs, after a launch. Pre: memory_mutex() is held; the allocation is a graph's.
CUresult free_after_launch(std::map<CUdeviceptr, Allocation>::iterator allocation, Point after);

// Makes the program's handle of a graph, and ends it. Pre: stream_mutex() is held, memory_mutex() is not.
CUgraph hold_graph(std::shared_ptr<Graph> graph);
void forget_graph(CUgraph handle);

}  // namespace simcuda
