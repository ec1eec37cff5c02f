// SPDX-License-Identifier: Apache-2.0
#include "tests/simcuda/driver/event.h"

#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/simcuda/driver/config.h"
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

// The moment of the last record. A record within a capture has no moment: asking for it is an error, and loses the
// capture (the programming guide, prohibited operations).
CUresult find_point(Event& event, Point* point) {
  const std::scoped_lock streams(stream_mutex());
  const std::scoped_lock lock(event.mutex);
  if (event.capture != nullptr) {
    event.capture->invalid = true;
    return CUDA_ERROR_CAPTURED_EVENT;
  }
  *point = event.point;
  return CUDA_SUCCESS;
}

// Events end with their context, and share its sticky error.
CUresult check_event(const Event& event) {
  const Context& context = *event.context;
  if (const CUresult result = check_active(context)) return result;
  if (context.id != event.context_id) return CUDA_ERROR_INVALID_HANDLE;
  return error_of(context);
}

// The time at which the last record ran.
CUresult find_time(Event& event, Event::Clock::rep* time) {
  const std::scoped_lock lock(event.mutex);
  if (!event.timed || !event.recorded) return CUDA_ERROR_INVALID_HANDLE;
  *time = *event.stamp;
  return *time == 0 ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

// Notes a record that was submitted as `point`, or in the capture of a stream with that frontier.
void note_record(Event& event, Point point, std::shared_ptr<Capture> capture, Frontier frontier,
                 std::shared_ptr<std::atomic<Event::Clock::rep>> stamp) {
  const std::scoped_lock lock(event.mutex);
  event.recorded = true;
  event.point = std::move(point);
  event.capture = std::move(capture);
  event.frontier = std::move(frontier);
  event.stamp = std::move(stamp);
}

// CU_EVENT_WAIT_EXTERNAL, in captures only: a node that at each launch waits for the last record of that time. Pre:
// stream_mutex() is held.
CUresult wait_from_graph(Stream& stream, const std::shared_ptr<Event>& event, unsigned flags) {
  if (flags != CU_EVENT_WAIT_EXTERNAL || stream.capture == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (stream.capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  add_node(stream, [event] {
    Point point;
    {
      const std::scoped_lock lock(event->mutex);
      point = event->point;
    }
    point.wait();
  });
  return CUDA_SUCCESS;
}

}  // namespace

CUresult event_create(CUevent* event, unsigned flags) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  if (event == nullptr) return CUDA_ERROR_INVALID_VALUE;
  context->room_waits.wait();
  auto fresh = std::make_shared<Event>();
  fresh->context = context;
  fresh->context_id = context->id;
  fresh->timed = (flags & CU_EVENT_DISABLE_TIMING) == 0;
  *event = reinterpret_cast<CUevent>(fresh.get());
  const std::scoped_lock lock(events_mutex);
  events()[*event] = std::move(fresh);
  return CUDA_SUCCESS;
}

CUresult event_destroy(CUevent event) {
  if (const CUresult result = check_initialized()) return result;
  if (const std::shared_ptr<Event> known = find_event(event)) known->context->room_waits.wait();
  const std::scoped_lock lock(events_mutex);
  const auto found = events().find(event);
  if (found == events().end()) return CUDA_ERROR_INVALID_HANDLE;
  const CUresult result = error_of(*found->second->context);
  events().erase(found);
  return result;
}

CUresult event_record(CUevent handle, CUstream stream_handle) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = enter(&context)) return result;
  if (const CUresult result = find_stream(*context, stream_handle, &stream)) return result;
  const std::shared_ptr<Event> event = find_event(handle);
  // Both must be of one context. The stream of a green context and an event of its primary context are, as the
  // reference of cuGreenCtxRecordEvent says.
  if (event == nullptr || &root_of(*event->context) != &root_of(*stream->context)) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult result = check_event(*event)) return result;
  auto stamp = std::make_shared<std::atomic<Event::Clock::rep>>(0);
  const auto waiting = wait_for_room(*stream);
  // The record is one step with respect to captures that other threads begin: it is within a capture or not.
  const std::scoped_lock streams(stream_mutex());
  if (const CUresult result = check_open(*stream)) return result;
  std::shared_ptr<Capture> capture = stream->capture;
  Point point;
  if (capture != nullptr && capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (capture == nullptr) {
    const CUresult result = submit_locked(
        *stream, [stamp] { *stamp = Event::Clock::now().time_since_epoch().count(); }, {}, &point, true);
    if (result != CUDA_SUCCESS) return result;
  }
  note_record(*event, std::move(point), std::move(capture), stream->frontier, std::move(stamp));
  return CUDA_SUCCESS;
}

// The work of destroyed streams counts, too (H200, driver 580). The record runs on a stream of its own, which ends
// with it.
CUresult context_record_event(CUcontext context_handle, CUevent handle) {
  if (const CUresult result = check_initialized()) return result;
  if (!config().context_events) return CUDA_ERROR_NOT_SUPPORTED;
  Context* const context = find_context(context_handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult result = check_active(*context)) return result;
  const std::shared_ptr<Event> event = find_event(handle);
  if (event == nullptr || &root_of(*event->context) != &root_of(*context)) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult result = check_event(*event)) return result;
  if (const CUresult result = check_no_capture(*context)) return result;
  std::vector<Point> work = pending(*context);
  auto stamp = std::make_shared<std::atomic<Event::Clock::rep>>(0);
  const std::scoped_lock streams(stream_mutex());
  const std::shared_ptr<Stream> stream = make_stream(*context, CU_STREAM_NON_BLOCKING, 0);
  Point point;
  const CUresult result = submit_locked(
      *stream, [stamp] { *stamp = Event::Clock::now().time_since_epoch().count(); }, std::move(work), &point, true);
  stream->timeline->close();
  stream->closed = true;
  if (result == CUDA_SUCCESS) note_record(*event, std::move(point), nullptr, {}, std::move(stamp));
  return result;
}

// CU_EVENT_RECORD_EXTERNAL, in captures only: a node that records the event at each launch.
CUresult event_record_flags(CUevent handle, CUstream stream_handle, unsigned flags) {
  if (flags == CU_EVENT_RECORD_DEFAULT) return event_record(handle, stream_handle);
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = enter(&context)) return result;
  if (const CUresult result = find_stream(*context, stream_handle, &stream)) return result;
  const std::shared_ptr<Event> event = find_event(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const std::scoped_lock streams(stream_mutex());
  if (const CUresult result = check_open(*stream)) return result;
  if (flags != CU_EVENT_RECORD_EXTERNAL || stream->capture == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (stream->capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  add_node(*stream, {});
  stream->capture->graph->records.push_back(event);
  return CUDA_SUCCESS;
}

CUresult event_query(CUevent handle) {
  if (const CUresult result = check_initialized()) return result;
  const std::shared_ptr<Event> event = find_event(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult result = check_event(*event)) return result;
  if (const CUresult result = check_safe_during_capture()) return result;
  Point point;
  if (const CUresult result = find_point(*event, &point)) return result;
  if (!point.passed()) return CUDA_ERROR_NOT_READY;
  return error_of(*event->context);
}

CUresult event_synchronize(CUevent handle) {
  if (const CUresult result = check_initialized()) return result;
  const std::shared_ptr<Event> event = find_event(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult result = check_event(*event)) return result;
  if (const CUresult result = check_safe_during_capture()) return result;
  Point point;
  if (const CUresult result = find_point(*event, &point)) return result;
  point.wait();
  trim_to_threshold(event->context->device);
  return error_of(*event->context);
}

bool is_of_capture(Event& event) {
  const std::scoped_lock lock(event.mutex);
  return event.capture != nullptr;
}

// Waiting for an event that was recorded in a capture pulls the waiting stream into it, which gives its queue no work.
CUresult stream_wait_event(CUstream stream_handle, CUevent handle, unsigned flags) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = enter(&context)) return result;
  if (const CUresult result = find_stream(*context, stream_handle, &stream)) return result;
  const std::shared_ptr<Event> event = find_event(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult result = check_event(*event)) return result;
  const auto waiting = is_of_capture(*event) ? nullptr : wait_for_room(*stream);
  const std::scoped_lock streams(stream_mutex());
  if (const CUresult result = check_open(*stream)) return result;
  if (flags != 0) return wait_from_graph(*stream, event, flags);
  const std::scoped_lock lock(event->mutex);
  if (event->capture != nullptr && event->capture->ended) return CUDA_ERROR_CAPTURED_EVENT;
  if (event->capture != nullptr) return wait_for_captured(*stream, event->capture, event->frontier);
  if (stream->capture != nullptr) {
    if (stream->capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!event->recorded) return CUDA_SUCCESS;
    stream->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  return event->point.passed() ? CUDA_SUCCESS : submit_locked(*stream, {}, {event->point}, nullptr);
}

CUresult event_elapsed(float* milliseconds, CUevent start, CUevent end) {
  if (const CUresult result = check_initialized()) return result;
  const std::shared_ptr<Event> first = find_event(start);
  const std::shared_ptr<Event> second = find_event(end);
  if (first == nullptr || second == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult result = check_event(*first)) return result;
  if (const CUresult result = check_event(*second)) return result;
  Event::Clock::rep from = 0;
  Event::Clock::rep to = 0;
  if (const CUresult result = find_time(*first, &from)) return result;
  if (const CUresult result = find_time(*second, &to)) return result;
  *milliseconds = std::chrono::duration<float, std::milli>(Event::Clock::duration(to - from)).count();
  return CUDA_SUCCESS;
}

CUresult event_elapsed_v2(float* milliseconds, CUevent start, CUevent end) {
  return event_elapsed(milliseconds, start, end);
}

}  // namespace simcuda
