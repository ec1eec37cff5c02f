// Stream capture and graphs. A graph is the captured work in capture order, which is one valid order of its nodes.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "tests/simcuda/driver/context.h"

namespace simcuda {

struct Graph {
  std::vector<std::function<void()>> nodes;
  std::vector<CUdeviceptr> memory;  // allocated by the capture, freed with the last holder of the graph
  int device = 0;

  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph();
};

struct Capture {
  std::uint64_t id = 0;
  Context* context = nullptr;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread;
  const void* origin = nullptr;  // the Stream that began it
  bool invalid = false;
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
};

// For calls that CUDA forbids while the thread's capture mode says so: fails with
// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and invalidates the captures that forbid it.
CUresult check_safe_during_capture();

// For calls that wait for a whole context: refused while any of its streams is captured, whatever the mode.
CUresult check_no_capture(Context& context);

// The legacy stream may not be used while a blocking stream of the context is captured. pre: stream_mutex() held.
CUresult check_implicit_capture(const Context& context);

}  // namespace simcuda
