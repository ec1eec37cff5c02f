// Stream capture: which streams are captured into which graph, and what may not be called meanwhile.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "tests/simcuda/driver/context.h"
#include "tests/simcuda/driver/graph.h"

namespace simcuda {

struct Stream;

// Of each captured stream the last node that something is ordered behind; by the number the stream has in its capture.
using Frontier = std::vector<std::uint64_t>;

// Guarded by stream_mutex().
struct Capture {
  std::uint64_t id = 0;
  Context* context = nullptr;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread;
  std::vector<Stream*> members;  // the first one began it; a place is null once its stream is destroyed
  Frontier last;                 // each member's last node; 0: it has none
  std::uint64_t nodes = 0;
  bool invalid = false;
  bool ended = false;
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  CUgraph handle = nullptr;  // of the graph
};

// Adds captured work behind everything the stream is ordered behind. pre: the stream is captured, stream_mutex() held.
void add_node(Stream& stream, std::function<void()> run);

// What a stream is ordered behind in its capture, for an event, and the wait for that: it pulls a stream that is not
// captured into the capture. pre: stream_mutex() held; the capture has not ended.
CUresult wait_for_captured(Stream& stream, const std::shared_ptr<Capture>& capture, const Frontier& frontier);

// For calls that CUDA forbids while the thread's capture mode says so: fails with
// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and invalidates the captures that forbid it.
CUresult check_safe_during_capture();
CUresult check_safe_during_capture_locked();  // pre: stream_mutex() held

// For calls that wait for a whole context: refused while any of its streams is captured, whatever the mode, and those
// captures are lost. The programming guide says so of device and context handles.
CUresult check_no_capture(Context& context);

// The capture of a stream that is destroyed, or whose context is: lost, and over when the stream began it.
// pre: stream_mutex() held.
void leave_capture(Stream& stream);

// The legacy stream may not be used while a blocking stream of the context is captured. pre: stream_mutex() held.
CUresult check_implicit_capture(const Context& context);

}  // namespace simcuda
