// Graphs: captured work in capture order, which is one valid order of its nodes, and the memory of their allocation
// nodes. Such memory has its addresses from the capture on, and bytes from the first launch on, which is where it may
// run out (the CUDA programming guide, graph memory nodes: bytes are there before the node is reached).
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
  std::vector<std::shared_ptr<Event>> records;  // that each launch records, here at its end; guarded by stream_mutex()
  std::vector<GraphMemory> memory;              // guarded by memory_mutex()
  std::vector<CUdeviceptr> foreign;             // memory of other graphs that this one frees; guarded by memory_mutex()
  std::weak_ptr<void> executable;               // the only one, of a graph with memory; guarded by stream_mutex()
  Point last;                                   // of the last launch; guarded by stream_mutex()

  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  // What is live stays, as documented, until it is freed; everything else is given back. pre: memory_mutex() not held.
  ~Graph();
};

// An allocation node and a free node. Only memory of graphs can be freed in one, as documented for cuMemFreeAsync;
// anything else is CUDA_ERROR_INVALID_VALUE. pre: memory_mutex() held.
CUresult allocate_in_graph(Graph& graph, const Device& device, std::uint64_t bytes, CUdeviceptr* address);
CUresult free_in_graph(Graph& graph, CUdeviceptr address);

// The opposite outside of graphs, after a launch. pre: memory_mutex() held, the allocation is a graph's.
CUresult free_after_launch(std::map<CUdeviceptr, Allocation>::iterator allocation, Point after);

// The program's handle of a graph, and the end of that. pre: stream_mutex() held, memory_mutex() not.
CUgraph hold_graph(std::shared_ptr<Graph> graph);
void forget_graph(CUgraph handle);

}  // namespace simcuda
