#include "tests/simcuda/driver/capture.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "tests/simcuda/driver/allocation.h"
#include "tests/simcuda/driver/stream.h"

namespace simcuda {
namespace {

thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

// Captures in progress; guarded by stream_mutex().
std::vector<std::shared_ptr<Capture>>& active() {
  static auto* const all = new std::vector<std::shared_ptr<Capture>>;
  return *all;
}

// Graphs and executables share what was captured.
template <class Handle>
std::map<Handle, std::shared_ptr<Graph>>& held() {
  static auto* const all = new std::map<Handle, std::shared_ptr<Graph>>;
  return *all;
}

template <class Handle>
Handle hold(std::shared_ptr<Graph> graph) {
  static std::uintptr_t next = 1;
  auto handle = reinterpret_cast<Handle>(16 * next++);
  held<Handle>()[handle] = std::move(graph);
  return handle;
}

// The owner is let go outside the lock: a graph's end takes the memory lock.
template <class Handle>
CUresult let_go(Handle handle) {
  std::shared_ptr<Graph> last;
  const std::scoped_lock lock(stream_mutex());
  const auto found = held<Handle>().find(handle);
  if (found == held<Handle>().end()) return CUDA_ERROR_INVALID_VALUE;
  last = std::move(found->second);
  held<Handle>().erase(found);
  return CUDA_SUCCESS;
}

// As cudaThreadExchangeStreamCaptureMode documents the three modes.
bool forbids(const Capture& capture) {
  if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
  if (capture.thread == std::this_thread::get_id()) return capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED;
  return thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

template <class Concerns>
CUresult refuse(Concerns concerns, CUresult error) {
  CUresult result = CUDA_SUCCESS;
  for (const auto& capture : active()) {
    if (!concerns(*capture)) continue;
    capture->invalid = true;
    result = error;
  }
  return result;
}

}  // namespace

Graph::~Graph() {
  const std::scoped_lock lock(memory_mutex());
  for (const CUdeviceptr address : memory) {
    const auto allocation = allocations().find(address);
    if (allocation != allocations().end()) end_allocation(allocation, {});
  }
}

CUresult check_safe_during_capture() {
  const std::scoped_lock lock(stream_mutex());
  return refuse(forbids, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

CUresult check_no_capture(Context& context) {
  const std::scoped_lock lock(stream_mutex());
  return refuse([&](const Capture& capture) { return capture.context == &context || forbids(capture); },
                CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

CUresult check_implicit_capture(const Context& context) {
  const auto& streams = context.streams;
  const bool captured = std::any_of(streams.begin(), streams.end(), [](const auto& stream) {
    return stream->capture != nullptr && stream->flags != CU_STREAM_NON_BLOCKING;
  });
  if (!captured) return CUDA_SUCCESS;
  return refuse([&](const Capture& capture) { return capture.context == &context; },
                CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
}

CUresult capture_begin(CUstream handle, CUstreamCaptureMode mode) {
  static std::atomic<std::uint64_t> next_id{1};
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = enter(&context)) return result;
  if (const CUresult result = find_stream(*context, handle, &stream)) return result;
  const std::scoped_lock lock(stream_mutex());
  if (stream == context->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  auto capture = std::make_shared<Capture>();
  capture->id = next_id++;
  capture->context = context;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = stream.get();
  capture->graph->device = context->device;
  active().push_back(capture);
  stream->capture = std::move(capture);
  return CUDA_SUCCESS;
}

CUresult capture_end(CUstream handle, CUgraph* graph) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = enter(&context)) return result;
  if (const CUresult result = find_stream(*context, handle, &stream)) return result;
  std::shared_ptr<Capture> capture;  // let go outside the lock
  const std::scoped_lock lock(stream_mutex());
  capture = stream->capture;
  if (capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->origin != stream.get()) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != std::this_thread::get_id()) {
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  std::erase(active(), capture);
  for (const auto& other : context->streams) {
    if (other->capture == capture) other->capture.reset();
  }
  if (capture->invalid) {
    if (graph != nullptr) *graph = nullptr;
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  }
  *graph = hold<CUgraph>(capture->graph);
  return CUDA_SUCCESS;
}

CUresult capture_status(CUstream handle, CUstreamCaptureStatus* status) {
  return capture_info(handle, status, nullptr, nullptr, nullptr, nullptr);
}

CUresult capture_info(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                      const CUgraphNode** nodes, size_t* count) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = enter(&context)) return result;
  if (const CUresult result = find_stream(*context, handle, &stream)) return result;
  const std::scoped_lock lock(stream_mutex());
  // Asking about the legacy stream is refused while another stream's capture could depend on the answer.
  if (stream == context->legacy && stream->capture == nullptr) {
    const auto forbidden = std::any_of(active().begin(), active().end(), [&](const auto& capture) {
      return capture->context == context && forbids(*capture);
    });
    if (forbidden) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  const auto& capture = stream->capture;
  *status = capture == nullptr ? CU_STREAM_CAPTURE_STATUS_NONE
            : capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                               : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (id != nullptr) *id = capture == nullptr ? 0 : capture->id;
  if (graph != nullptr) *graph = nullptr;  // nodes of a graph under construction cannot be edited here
  if (nodes != nullptr) *nodes = nullptr;
  if (count != nullptr) *count = 0;
  return CUDA_SUCCESS;
}

CUresult capture_info_v3(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                         const CUgraphNode** nodes, const void** edges, size_t* count) {
  if (edges != nullptr) *edges = nullptr;
  return capture_info(stream, status, id, graph, nodes, count);
}

CUresult capture_exchange_mode(CUstreamCaptureMode* mode) {
  if (mode == nullptr || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, thread_mode);
  return CUDA_SUCCESS;
}

CUresult graph_instantiate(CUgraphExec* executable, CUgraph graph, unsigned long long) {
  if (const CUresult result = check_initialized()) return result;
  const std::scoped_lock lock(stream_mutex());
  const auto found = held<CUgraph>().find(graph);
  if (found == held<CUgraph>().end()) return CUDA_ERROR_INVALID_VALUE;
  *executable = hold<CUgraphExec>(found->second);
  return CUDA_SUCCESS;
}

CUresult graph_launch(CUgraphExec executable, CUstream handle) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = enter(&context)) return result;
  if (const CUresult result = find_stream(*context, handle, &stream)) return result;
  std::shared_ptr<Graph> graph;
  {
    const std::scoped_lock lock(stream_mutex());
    const auto found = held<CUgraphExec>().find(executable);
    if (found == held<CUgraphExec>().end()) return CUDA_ERROR_INVALID_VALUE;
    graph = found->second;
  }
  return submit(*stream, [graph = std::move(graph)] {
    for (const auto& node : graph->nodes) node();
  });
}

CUresult graph_destroy(CUgraph graph) {
  if (const CUresult result = check_initialized()) return result;
  return let_go(graph);
}

CUresult graph_exec_destroy(CUgraphExec executable) {
  if (const CUresult result = check_initialized()) return result;
  return let_go(executable);
}

}  // namespace simcuda
