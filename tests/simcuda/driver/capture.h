// SPDX-License-Identifier: Apache-2.0
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

// For each captured stream the last node behind which something is ordered, by the stream's number in its capture.
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

// Adds captured work behind everything the stream is ordered behind. Pre: the stream is captured; stream_mutex() is
// held.
void add_node(Stream& stream, std::function<void()> run);

// Orders a stream behind what an event recorded in a capture. A stream that is not captured joins the capture. Pre:
// stream_mutex() is held; the capture has not ended.
CUresult wait_for_captured(Stream& stream, const std::shared_ptr<Capture>& capture, const Frontier& frontier);

// Asked by calls that a capture may forbid, depending on the thread's capture mode. Where one does, this fails with
// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and invalidates the captures that forbid the call.
CUresult check_safe_during_capture();
CUresult check_safe_during_capture_locked();  // pre: stream_mutex() is held

// Asked by calls that wait for a whole context. They are refused while any of its streams is captured, whatever the
// mode, and those captures are lost. The programming guide says so of device and context handles.
CUresult check_no_capture(Context& context);

// Loses the capture of a stream that is destroyed, or whose context is; the capture is over if the stream began it.
// Pre: stream_mutex() is held.
void leave_capture(Stream& stream);

// Fails while a blocking stream of the context is captured: the legacy stream may not be used then. Pre: stream_mutex()
// is held.
CUresult check_implicit_capture(const Context& context);

}  // namespace simcuda
