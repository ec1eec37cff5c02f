// SPDX-License-Identifier: Apache-2.0
#include "tests/simcuda/driver/graph.h"

#include <algorithm>
#include <map>

#include "tests/simcuda/driver/capture.h"
#include "tests/simcuda/driver/event.h"
#include "tests/simcuda/driver/heap.h"
#include "tests/simcuda/driver/mapped_allocation.h"
#include "tests/simcuda/driver/stream.h"

namespace simcuda {
namespace {

struct Executable {
  std::shared_ptr<Graph> graph;
  bool frees_on_launch = false;  // CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
};

// Guarded by stream_mutex().
std::map<CUgraph, std::shared_ptr<Graph>>& graphs() {
  static auto* const all = new std::map<CUgraph, std::shared_ptr<Graph>>;
  return *all;
}

std::map<CUgraphExec, std::shared_ptr<Executable>>& executables() {
  static auto* const all = new std::map<CUgraphExec, std::shared_ptr<Executable>>;
  return *all;
}

template <class Handle>
Handle next_graph_handle() {
  static std::uintptr_t next = 1;
  return reinterpret_cast<Handle>(16 * next++);
}

GraphMemory* find_memory(Graph& graph, CUdeviceptr address) {
  const auto found = std::find_if(graph.memory.begin(), graph.memory.end(),
                                  [&](const GraphMemory& memory) { return memory.address == address; });
  return found == graph.memory.end() ? nullptr : &*found;
}

CUresult map_memory(GraphMemory& memory) {
  Device& device = *find_device(memory.device);
  Extent* extent = nullptr;
  if (const CUresult result = create_extent(device, memory.bytes, &extent)) return result;
  if (!map(memory.address, extent, device.plain->access(), false)) {
    drop_if_unused(extent);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  memory.mapped = true;
  return CUDA_SUCCESS;
}

// Maps all of the graph's memory, or changes nothing.
CUresult map_all(Graph& graph) {
  std::vector<GraphMemory*> fresh;
  for (GraphMemory& memory : graph.memory) {
    if (memory.mapped) continue;
    if (const CUresult result = map_memory(memory)) {
      for (GraphMemory* mapped : fresh) {
        unmap(mappings().find(mapped->address));
        mapped->mapped = false;
      }
      return result;
    }
    fresh.push_back(&memory);
  }
  return CUDA_SUCCESS;
}

// Whether all that the graph allocates is free, and all that it frees of other graphs is live.
bool may_launch(const Executable& executable) {
  const Graph& graph = *executable.graph;
  const auto is_live = [](const GraphMemory& memory) { return memory.live; };
  if (!executable.frees_on_launch && std::any_of(graph.memory.begin(), graph.memory.end(), is_live)) return false;
  return std::all_of(graph.foreign.begin(), graph.foreign.end(), [](CUdeviceptr address) {
    const auto allocation = allocations().find(address);
    if (allocation == allocations().end()) return false;
    Graph* const owner = allocation->second.graph;
    return owner == nullptr || find_memory(*owner, address)->live;
  });
}

void begin_lives(Graph& graph) {
  for (GraphMemory& memory : graph.memory) memory.live = !memory.freed_within;
}

void end_foreign_lives(const Graph& graph, const Point& after) {
  for (const CUdeviceptr address : graph.foreign) {
    const auto allocation = allocations().find(address);
    if (allocation != allocations().end()) free_after_launch(allocation, after);
  }
}

bool has_memory(const Graph& graph) { return !graph.memory.empty() || !graph.foreign.empty(); }

// Launches a graph into another capture: it becomes a part of that graph. A graph with memory cannot.
CUresult launch_into_capture(Stream& stream, const std::shared_ptr<Graph>& graph) {
  if (stream.capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  {
    const std::scoped_lock lock(memory_mutex());
    if (has_memory(*graph)) return CUDA_ERROR_NOT_SUPPORTED;
  }
  add_node(stream, [graph] {
    for (const auto& node : graph->nodes) node();
  });
  return CUDA_SUCCESS;
}

CUresult launch(Stream& stream, const Executable& executable) {
  const std::shared_ptr<Graph>& graph = executable.graph;
  if (const CUresult result = check_open(stream)) return result;
  if (stream.capture != nullptr) return launch_into_capture(stream, graph);
  {
    const std::scoped_lock lock(memory_mutex());
    if (!may_launch(executable)) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = map_all(*graph)) return result;
  }
  // A launch runs behind the launch before, as documented.
  Point done;
  const auto run = [graph] {
    for (const auto& node : graph->nodes) node();
  };
  if (const CUresult result = submit_locked(stream, run, {graph->last}, &done)) return result;
  graph->last = done;
  for (const std::shared_ptr<Event>& event : graph->records) {
    const std::scoped_lock lock(event->mutex);
    event->recorded = true;
    event->point = done;
    event->capture = nullptr;
  }
  const std::scoped_lock lock(memory_mutex());
  begin_lives(*graph);
  end_foreign_lives(*graph, done);
  return CUDA_SUCCESS;
}

}  // namespace

Graph::~Graph() {
  const std::scoped_lock lock(memory_mutex());
  for (const GraphMemory& part : memory) {
    const auto allocation = allocations().find(part.address);
    allocation->second.graph = nullptr;
    if (part.live) continue;
    allocations().erase(allocation);
    if (part.mapped) {
      end_mapped(part.address, {});
    } else {
      unreserve(part.address, part.bytes);
    }
  }
}

CUresult allocate_in_graph(Graph& graph, const Device& device, std::uint64_t bytes, CUdeviceptr* address) {
  if (bytes > config().device_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::uint64_t pages = round_to_pages(bytes);
  const CUdeviceptr base = reserve(pages, kPageBytes, 0);
  if (base == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  Allocation allocation{Allocation::Kind::Graph, bytes, device.ordinal};
  allocation.graph = &graph;
  note_allocation(base, allocation);
  graph.memory.push_back({base, pages, device.ordinal});
  *address = base;
  return CUDA_SUCCESS;
}

CUresult free_in_graph(Graph& graph, CUdeviceptr address) {
  const auto allocation = allocations().find(address);
  if (allocation == allocations().end() || allocation->second.kind != Allocation::Kind::Graph) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (allocation->second.graph != &graph) {
    graph.foreign.push_back(address);
    return CUDA_SUCCESS;
  }
  GraphMemory& memory = *find_memory(graph, address);
  if (memory.freed_within) return CUDA_ERROR_INVALID_VALUE;
  memory.freed_within = true;
  return CUDA_SUCCESS;
}

CUresult free_after_launch(std::map<CUdeviceptr, Allocation>::iterator allocation, Point after) {
  Graph* const graph = allocation->second.graph;
  if (graph == nullptr) {
    end_allocation(allocation, std::move(after));
    return CUDA_SUCCESS;
  }
  GraphMemory& memory = *find_memory(*graph, allocation->first);
  if (!memory.live) return CUDA_ERROR_INVALID_VALUE;
  memory.live = false;  // its bytes wait for the next launch
  return CUDA_SUCCESS;
}

CUgraph hold_graph(std::shared_ptr<Graph> graph) {
  const auto handle = next_graph_handle<CUgraph>();
  graphs()[handle] = std::move(graph);
  return handle;
}

void forget_graph(CUgraph handle) { graphs().erase(handle); }

CUresult graph_instantiate(CUgraphExec* executable, CUgraph handle, unsigned long long flags) {
  if (const CUresult result = check_initialized()) return result;
  const std::scoped_lock lock(stream_mutex());
  const auto found = graphs().find(handle);
  if (executable == nullptr || found == graphs().end()) return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<Graph>& graph = found->second;
  {
    const std::scoped_lock memory(memory_mutex());
    if (has_memory(*graph) && !graph->executable.expired()) return CUDA_ERROR_INVALID_VALUE;  // only one at a time
  }
  auto fresh = std::make_shared<Executable>();
  fresh->graph = graph;
  fresh->frees_on_launch = (flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
  graph->executable = fresh;
  *executable = next_graph_handle<CUgraphExec>();
  executables()[*executable] = std::move(fresh);
  return CUDA_SUCCESS;
}

namespace {

// Calls `act(stream, executable)` if both exist.
template <class Act>
CUresult with_executable(CUgraphExec handle, CUstream stream_handle, Act act) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = enter(&context)) return result;
  if (const CUresult result = find_stream(*context, stream_handle, &stream)) return result;
  const std::scoped_lock lock(stream_mutex());
  const auto found = executables().find(handle);
  return found == executables().end() ? CUDA_ERROR_INVALID_VALUE : act(*stream, *found->second);
}

}  // namespace

CUresult graph_launch(CUgraphExec handle, CUstream stream_handle) {
  return with_executable(handle, stream_handle,
                         [](Stream& stream, auto& executable) { return launch(stream, executable); });
}

CUresult graph_upload(CUgraphExec handle, CUstream stream_handle) {
  return with_executable(handle, stream_handle, [](Stream&, auto& executable) {
    const std::scoped_lock memory(memory_mutex());
    return map_all(*executable.graph);
  });
}

CUresult graph_destroy(CUgraph handle) {
  if (const CUresult result = check_initialized()) return result;
  const std::scoped_lock lock(stream_mutex());
  return graphs().erase(handle) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult graph_exec_destroy(CUgraphExec handle) {
  if (const CUresult result = check_initialized()) return result;
  const std::scoped_lock lock(stream_mutex());
  return executables().erase(handle) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Memory of graphs is not cached here: it goes back as soon as neither the graph nor its executable exists.
CUresult graph_memory_trim(CUdevice device) {
  if (const CUresult result = check_initialized()) return result;
  return find_device(device) == nullptr ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

}  // namespace simcuda
