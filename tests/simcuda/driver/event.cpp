#include "tests/simcuda/driver/event.h"

#include <unordered_map>

#include "tests/simcuda/driver/pool.h"
#include "tests/simcuda/driver/stream.h"

namespace simcuda {
namespace {

std::mutex events_mutex;

std::unordered_map<CUevent, std::shared_ptr<Event>>& events() {
  static auto* const all = new std::unordered_map<CUevent, std::shared_ptr<Event>>;
  return *all;
}

std::shared_ptr<Event> find_event(CUevent handle) {
  const std::scoped_lock lock(events_mutex);
  const auto found = events().find(handle);
  return found == events().end() ? nullptr : found->second;
}

Point point_of(Event& event, bool* captured) {
  const std::scoped_lock lock(event.mutex);
  *captured = event.capture != nullptr;
  return event.point;
}

}  // namespace

CUresult event_create(CUevent* event, unsigned flags) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  if (event == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto fresh = std::make_shared<Event>();
  fresh->context = context;
  fresh->timed = (flags & CU_EVENT_DISABLE_TIMING) == 0;
  *event = reinterpret_cast<CUevent>(fresh.get());
  const std::scoped_lock lock(events_mutex);
  events()[*event] = std::move(fresh);
  return CUDA_SUCCESS;
}

CUresult event_destroy(CUevent event) {
  if (const CUresult result = check_initialized()) return result;
  const std::scoped_lock lock(events_mutex);
  return events().erase(event) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult event_record(CUevent handle, CUstream stream_handle) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = enter(&context)) return result;
  if (const CUresult result = find_stream(*context, stream_handle, &stream)) return result;
  const std::shared_ptr<Event> event = find_event(handle);
  if (event == nullptr || event->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
  auto stamp = std::make_shared<std::atomic<Event::Clock::rep>>(0);
  std::shared_ptr<Capture> capture;
  {
    const std::scoped_lock lock(stream_mutex());
    capture = stream->capture;
  }
  Point point;
  const CUresult result = submit(
      *stream, [stamp] { *stamp = Event::Clock::now().time_since_epoch().count(); }, {}, &point);
  if (result != CUDA_SUCCESS) return result;
  const std::scoped_lock lock(event->mutex);
  event->recorded = true;
  event->point = std::move(point);
  event->capture = std::move(capture);
  event->stamp = std::move(stamp);
  return CUDA_SUCCESS;
}

CUresult event_record_flags(CUevent event, CUstream stream, unsigned) { return event_record(event, stream); }

CUresult event_query(CUevent handle) {
  if (const CUresult result = check_initialized()) return result;
  const std::shared_ptr<Event> event = find_event(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult result = check_safe_during_capture()) return result;
  bool captured = false;
  const Point point = point_of(*event, &captured);
  if (captured) return CUDA_ERROR_CAPTURED_EVENT;
  return point.passed() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult event_synchronize(CUevent handle) {
  if (const CUresult result = check_initialized()) return result;
  const std::shared_ptr<Event> event = find_event(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult result = check_safe_during_capture()) return result;
  bool captured = false;
  const Point point = point_of(*event, &captured);
  if (captured) return CUDA_ERROR_CAPTURED_EVENT;
  point.wait();
  trim_to_threshold(event->context->device);
  return event->context->error;
}

// Waiting for an event recorded in a capture joins the waiting stream to that capture.
CUresult stream_wait_event(CUstream stream_handle, CUevent handle, unsigned) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = enter(&context)) return result;
  if (const CUresult result = find_stream(*context, stream_handle, &stream)) return result;
  const std::shared_ptr<Event> event = find_event(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Point point;
  std::shared_ptr<Capture> capture;
  bool recorded = false;
  {
    const std::scoped_lock lock(event->mutex);
    point = event->point;
    capture = event->capture;
    recorded = event->recorded;
  }
  {
    const std::scoped_lock lock(stream_mutex());
    if (capture != nullptr) {
      if (stream->capture == nullptr) stream->capture = capture;
      return stream->capture == capture ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (stream->capture != nullptr) {
      if (!recorded) return CUDA_SUCCESS;
      stream->capture->invalid = true;
      return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
  }
  if (point.passed()) return CUDA_SUCCESS;
  return submit(*stream, {}, {std::move(point)});
}

CUresult event_elapsed(float* milliseconds, CUevent start, CUevent end) {
  if (const CUresult result = check_initialized()) return result;
  const std::shared_ptr<Event> first = find_event(start);
  const std::shared_ptr<Event> second = find_event(end);
  if (first == nullptr || second == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!first->timed || !second->timed || !first->recorded || !second->recorded) return CUDA_ERROR_INVALID_HANDLE;
  const Event::Clock::rep from = *first->stamp;
  const Event::Clock::rep to = *second->stamp;
  if (from == 0 || to == 0) return CUDA_ERROR_NOT_READY;
  *milliseconds = std::chrono::duration<float, std::milli>(Event::Clock::duration(to - from)).count();
  return CUDA_SUCCESS;
}

CUresult event_elapsed_v2(float* milliseconds, CUevent start, CUevent end) {
  return event_elapsed(milliseconds, start, end);
}

}  // namespace simcuda
