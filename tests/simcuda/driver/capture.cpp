// SPDX-License-Identifier: Apache-2.0
#include "tests/simcuda/driver/capture.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#include "tests/simcuda/driver/stream.h"

namespace simcuda {
namespace {

thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

// Captures in progress; guarded by stream_mutex().
std::vector<std::shared_ptr<Capture>>& active() {
  static auto* const all = new std::vector<std::shared_ptr<Capture>>;
  return *all;
}

// Whether the capture forbids unsafe calls, as cudaThreadExchangeStreamCaptureMode documents the three modes.
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

// Takes every stream out of the capture.
void end(const std::shared_ptr<Capture>& capture) {
  std::erase(active(), capture);
  capture->ended = true;
  for (Stream* stream : capture->members) {
    if (stream == nullptr) continue;
    stream->capture.reset();
    stream->frontier.clear();
  }
  capture->members.clear();
}

void join(Stream& stream, const std::shared_ptr<Capture>& capture) {
  stream.capture = capture;
  stream.frontier.clear();
  capture->members.push_back(&stream);
  capture->last.push_back(0);
}

void merge(Frontier& into, const Frontier& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

// Whether the stream is ordered behind every node of the capture. It does not matter whether each fork was joined: as
// the reference of cuStreamUpdateCaptureDependencies says, what counts is whether there are nodes that cannot be
// reached from the stream.
bool has_joined_all(const Stream& stream) {
  const Frontier& last = stream.capture->last;
  for (std::size_t i = 0; i < last.size(); ++i) {
    if (last[i] > (i < stream.frontier.size() ? stream.frontier[i] : 0)) return false;
  }
  return true;
}

}  // namespace

void add_node(Stream& stream, std::function<void()> run) {
  Capture& capture = *stream.capture;
  const auto place = std::find(capture.members.begin(), capture.members.end(), &stream) - capture.members.begin();
  const auto index = static_cast<std::size_t>(place);
  if (stream.frontier.size() <= index) stream.frontier.resize(index + 1);
  stream.frontier[index] = capture.last[index] = ++capture.nodes;
  if (run) capture.graph->nodes.push_back(std::move(run));
}

// The error codes: for a merge, which loses both captures, they are those of the programming guide (cross-stream
// dependencies); for a stream without a capture that would join an invalidated one, others have observed and reported
// the code.
CUresult wait_for_captured(Stream& stream, const std::shared_ptr<Capture>& capture, const Frontier& frontier) {
  if (stream.capture != nullptr && stream.capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (capture->invalid) return CUDA_ERROR_INVALID_VALUE;
  if (stream.capture != nullptr && stream.capture != capture) {
    stream.capture->invalid = capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (stream.capture == nullptr && &stream == stream.context->legacy.get()) {
    capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  if (stream.capture == nullptr) join(stream, capture);
  merge(stream.frontier, frontier);
  return CUDA_SUCCESS;
}

CUresult check_safe_during_capture() {
  const std::scoped_lock lock(stream_mutex());
  return check_safe_during_capture_locked();
}

CUresult check_safe_during_capture_locked() { return refuse(forbids, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); }

CUresult check_no_capture(Context& context) {
  const std::scoped_lock lock(stream_mutex());
  const auto is_within = [&](const Capture& capture) {
    return capture.context == &context || capture.context->parent == &context;
  };
  return refuse([&](const Capture& capture) { return is_within(capture) || forbids(capture); },
                CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

void leave_capture(Stream& stream) {
  if (stream.capture == nullptr) return;
  const std::shared_ptr<Capture> capture = std::move(stream.capture);
  stream.capture.reset();
  capture->invalid = true;
  const bool began_it = capture->members.front() == &stream;
  std::replace(capture->members.begin(), capture->members.end(), &stream, static_cast<Stream*>(nullptr));
  if (!began_it) return;
  end(capture);
  forget_graph(capture->handle);
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
  stream->context->room_waits.wait();
  const std::scoped_lock lock(stream_mutex());
  if (const CUresult result = check_open(*stream)) return result;
  if (stream == stream->context->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  auto capture = std::make_shared<Capture>();
  capture->id = next_id++;
  capture->context = stream->context;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->handle = hold_graph(capture->graph);
  active().push_back(capture);
  join(*stream, capture);
  return CUDA_SUCCESS;
}

CUresult capture_end(CUstream handle, CUgraph* graph) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = enter(&context)) return result;
  if (const CUresult result = find_stream(*context, handle, &stream)) return result;
  const std::scoped_lock lock(stream_mutex());
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->members.front() != stream.get()) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != std::this_thread::get_id()) {
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  const bool joined = has_joined_all(*stream);
  end(capture);
  if (!capture->invalid && joined) {
    *graph = capture->handle;
    return CUDA_SUCCESS;
  }
  forget_graph(capture->handle);
  if (graph != nullptr) *graph = nullptr;
  return capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
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
  // As cuStreamIsCapturing documents, the legacy stream's status is refused while a blocking stream is captured, in
  // whatever mode, and asking leaves that capture as it is.
  if (stream == context->legacy && stream->capture == nullptr) {
    const auto captured = std::any_of(context->streams.begin(), context->streams.end(), [](const auto& other) {
      return other->capture != nullptr && other->flags != CU_STREAM_NON_BLOCKING;
    });
    if (captured) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  const auto& capture = stream->capture;
  *status = capture == nullptr ? CU_STREAM_CAPTURE_STATUS_NONE
            : capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                               : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  const bool captures = *status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (id != nullptr) *id = captures ? capture->id : 0;
  if (graph != nullptr) *graph = captures ? capture->handle : nullptr;
  if (nodes != nullptr) *nodes = nullptr;  // nodes have no handles here
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

}  // namespace simcuda
