// SPDX-License-Identifier: Apache-2.0
#include "tests/simcuda/driver/stream.h"

#include <atomic>
#include <cstdlib>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/simcuda/driver/capture.h"
#include "tests/simcuda/driver/config.h"
#include "tests/simcuda/driver/pool.h"

namespace simcuda {
namespace {

std::atomic<std::uint64_t> next_id{1};

std::unordered_map<CUstream, std::shared_ptr<Stream>>& created() {
  static auto* const streams = new std::unordered_map<CUstream, std::shared_ptr<Stream>>;
  return *streams;
}

// The calling thread's default stream in a context, which ends with the context.
std::shared_ptr<Stream> own_stream(Context& context) {
  thread_local std::map<std::uint64_t, std::weak_ptr<Stream>> own;
  std::weak_ptr<Stream>& slot = own[context.id];
  std::shared_ptr<Stream> stream = slot.lock();
  if (stream == nullptr) {
    stream = make_stream(context, CU_STREAM_DEFAULT, 0);
    slot = stream;
  }
  return stream;
}

// Handles behind the first, up to the last one, were given out. stream_mutex() guards them.
constexpr std::uintptr_t kFirstHandle = 0x10000;
constexpr std::uintptr_t kBetweenHandles = 16;
std::uintptr_t last_handle = kFirstHandle;

// A destroyed stream's handle is the next one given out, even while work of the old stream is pending. This is the
// worst that a driver may do.
CUstream new_stream_handle(std::vector<CUstream>& spare) {
  if (spare.empty()) return reinterpret_cast<CUstream>(last_handle += kBetweenHandles);
  const CUstream handle = spare.back();
  spare.pop_back();
  return handle;
}

std::vector<CUstream>& spare_stream_handles() {
  static auto* const handles = new std::vector<CUstream>;
  return *handles;
}

// Forgets destroyed streams whose work is done. Pre: stream_mutex() is held.
void drop_drained(Context& context) {
  std::erase_if(context.streams, [](const auto& stream) { return stream->closed && stream->timeline->now().passed(); });
}

// Adds the points behind which the implicit order of the legacy stream puts new work on `stream`. Pre: stream_mutex()
// is held.
void add_implicit_order(const Stream& stream, std::vector<Point>& after) {
  if (stream.flags == CU_STREAM_NON_BLOCKING) return;
  const Context& context = *stream.context;
  const auto add = [&](const Stream& other) {
    Point point = other.timeline->now();
    if (!point.passed()) after.push_back(std::move(point));
  };
  if (&stream != context.legacy.get()) {
    add(*context.legacy);
    return;
  }
  for (const auto& other : context.streams) {
    if (other.get() != &stream && other->flags != CU_STREAM_NON_BLOCKING) add(*other);
  }
}

// Waits as the destruction of a created stream does beside full streams of its context (room.h).
void wait_beside_full_streams(CUstream handle) {
  Context* owner = nullptr;
  {
    const std::scoped_lock lock(stream_mutex());
    const auto found = created().find(handle);
    if (found != created().end() && !found->second->orphaned) owner = found->second->context;
  }
  if (owner != nullptr) owner->room_waits.wait();
}

}  // namespace

std::mutex& stream_mutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

std::shared_ptr<Stream> make_stream(Context& context, unsigned flags, int priority) {
  auto stream = std::make_shared<Stream>();
  stream->context = &context;
  stream->flags = flags;
  stream->priority = priority;
  stream->timeline = std::make_shared<Timeline>(next_id++, root_of(context).error);
  context.streams.push_back(stream);
  return stream;
}

CUresult find_stream(Context& context, CUstream handle, std::shared_ptr<Stream>* stream) {
  const std::scoped_lock lock(stream_mutex());
  if (const CUresult result = check_active(context)) return result;
  if (handle == nullptr || handle == CU_STREAM_LEGACY) {
    *stream = context.legacy;
  } else if (handle == CU_STREAM_PER_THREAD) {
    *stream = own_stream(context);
  } else {
    const auto found = created().find(handle);
    if (found == created().end()) {
      if (config().strict_streams) std::abort();
      return CUDA_ERROR_INVALID_HANDLE;
    }
    *stream = found->second;
  }
  if ((*stream)->orphaned) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return error_of(*(*stream)->context);
}

CUresult enter_stream(CUstream handle, Context** context) {
  const CUresult entered = enter(context);
  if (entered != CUDA_ERROR_INVALID_CONTEXT) return entered;
  const std::scoped_lock lock(stream_mutex());
  const auto found = created().find(handle);
  if (found == created().end()) return entered;
  *context = found->second->context;
  if (const CUresult result = check_active(**context)) return result;
  return error_of(**context);
}

CUresult check_open(const Stream& stream) {
  if (stream.orphaned) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return stream.closed ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

CUresult submit_locked(Stream& stream, std::function<void()> run, std::vector<Point> after, Point* point,
                       bool takes_no_time) {
  if (const CUresult result = check_open(stream)) return result;
  if (&stream == stream.context->legacy.get()) {
    if (const CUresult result = check_implicit_capture(*stream.context)) return result;
  }
  add_implicit_order(stream, after);
  const std::uint64_t sequence = stream.timeline->submit(std::move(run), std::move(after), takes_no_time);
  if (point != nullptr) *point = {stream.timeline, sequence};
  return CUDA_SUCCESS;
}

bool is_captured(const Stream& stream) {
  const std::scoped_lock lock(stream_mutex());
  return stream.capture != nullptr;
}

bool is_legacy(const Stream& stream) {
  const std::scoped_lock lock(stream_mutex());
  return &stream == stream.context->legacy.get();
}

std::unique_ptr<RoomWaits::Waiting> wait_for_room(const Stream& stream) {
  if (is_legacy(stream)) stream.context->room_waits.wait();
  if (stream.timeline->has_room() || is_captured(stream)) return nullptr;
  auto waiting = std::make_unique<RoomWaits::Waiting>(stream.context->room_waits);
  stream.timeline->wait_for_room();
  return waiting;
}

CUresult submit(Stream& stream, std::function<void()> run, std::vector<Point> after, Point* point) {
  const auto waiting = wait_for_room(stream);
  const std::scoped_lock lock(stream_mutex());
  if (stream.capture != nullptr) {
    if (stream.capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (run) add_node(stream, std::move(run));
    return CUDA_SUCCESS;
  }
  return submit_locked(stream, std::move(run), std::move(after), point);
}

CUresult submit_eager(Stream& stream, std::function<void()> run, Point* point) {
  const std::scoped_lock lock(stream_mutex());
  if (stream.capture != nullptr) {
    stream.capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return submit_locked(stream, std::move(run), {}, point);
}

CUresult submit_and_wait(Stream& stream, std::function<void()> run) {
  const Context& context = *stream.context;
  Point done;
  if (const CUresult result = submit_eager(stream, std::move(run), &done)) return result;
  done.wait();
  return error_of(context);
}

std::vector<Point> close_streams(Context& context) {
  std::vector<Point> points;
  for (const auto& stream : context.streams) {
    leave_capture(*stream);
    points.push_back(stream->timeline->now());
    stream->timeline->close();
    stream->orphaned = true;
  }
  // As cuGreenCtxDestroy says, the streams of a green context are not destroyed with it: their handles stay known, and
  // every use of them is refused.
  if (context.parent == nullptr) {
    std::erase_if(created(), [&](const auto& stream) { return stream.second->context == &context; });
  }
  context.streams.clear();
  context.legacy.reset();
  return points;
}

std::vector<Point> pending(Context& context) {
  const std::scoped_lock lock(stream_mutex());
  std::vector<Point> points;
  for (const auto& stream : context.streams) points.push_back(stream->timeline->now());
  for (const Context* green : context.greens) {
    for (const auto& stream : green->streams) points.push_back(stream->timeline->now());
  }
  return points;
}

CUresult create_stream(Context& context, CUstream* stream, unsigned flags, int priority) {
  context.room_waits.wait();
  const std::scoped_lock lock(stream_mutex());
  if (const CUresult result = check_active(context)) return result;
  auto fresh = make_stream(context, flags, priority);
  *stream = new_stream_handle(spare_stream_handles());
  created()[*stream] = std::move(fresh);
  return CUDA_SUCCESS;
}

CUresult stream_create_priority(CUstream* stream, unsigned flags, int priority) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  if (stream == nullptr || flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  return create_stream(*context, stream, flags, priority);
}

CUresult stream_create(CUstream* stream, unsigned flags) { return stream_create_priority(stream, flags, 0); }

// Like the real function, does not wait for what is queued; it still runs.
CUresult stream_destroy(CUstream handle) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  wait_beside_full_streams(handle);
  const std::scoped_lock lock(stream_mutex());
  const auto found = created().find(handle);
  if (found == created().end()) return CUDA_ERROR_INVALID_HANDLE;
  Stream& stream = *found->second;
  if (stream.orphaned) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  leave_capture(stream);
  stream.timeline->close();
  stream.closed = true;  // its context still waits for what is queued
  Context& owner = *stream.context;
  created().erase(found);
  spare_stream_handles().push_back(handle);
  drop_drained(owner);
  return CUDA_SUCCESS;
}

CUresult stream_synchronize(CUstream handle) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = enter(&context)) return result;
  if (const CUresult result = find_stream(*context, handle, &stream)) return result;
  if (const CUresult result = check_safe_during_capture()) return result;
  Point end;
  if (const CUresult result = submit_eager(*stream, {}, &end)) return result;
  end.wait();
  trim_to_threshold(stream->context->device);
  return error_of(*stream->context);
}

CUresult stream_query(CUstream handle) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = enter(&context)) return result;
  if (const CUresult result = find_stream(*context, handle, &stream)) return result;
  if (const CUresult result = check_safe_during_capture()) return result;
  if (!stream->timeline->has_room()) stream->context->room_waits.wait();
  const std::scoped_lock lock(stream_mutex());
  if (const CUresult result = check_open(*stream)) return result;
  if (stream->capture != nullptr) {
    stream->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  std::vector<Point> before;  // the legacy stream is asked for what its next work would wait for, as an H100 has it
  if (stream == context->legacy) add_implicit_order(*stream, before);
  return before.empty() && stream->timeline->now().passed() ? error_of(*stream->context) : CUDA_ERROR_NOT_READY;
}

CUresult stream_flags(CUstream handle, unsigned* flags) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = enter(&context)) return result;
  if (const CUresult result = find_stream(*context, handle, &stream)) return result;
  const std::scoped_lock lock(stream_mutex());
  if (stream->capture != nullptr) {  // unlike its context and priority (H200, driver 580)
    stream->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  *flags = stream->flags;
  return CUDA_SUCCESS;
}

CUresult stream_priority(CUstream handle, int* priority) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = enter(&context)) return result;
  if (const CUresult result = find_stream(*context, handle, &stream)) return result;
  *priority = stream->priority;
  return CUDA_SUCCESS;
}

CUresult stream_id(CUstream handle, unsigned long long* id) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = enter(&context)) return result;
  if (const CUresult result = find_stream(*context, handle, &stream)) return result;
  *id = stream->timeline->id();
  return CUDA_SUCCESS;
}

CUresult stream_context(CUstream handle, CUcontext* owner) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = enter(&context)) return result;
  if (const CUresult result = find_stream(*context, handle, &stream)) return result;
  *owner = handle_of(stream->context);
  return CUDA_SUCCESS;
}

CUresult launch_host(CUstream handle, CUhostFn function, void* data) {
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = enter(&context)) return result;
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = find_stream(*context, handle, &stream)) return result;
  if (!is_captured(*stream)) stream->context->room_waits.wait();
  return submit(*stream, [function, data] { function(data); });
}

}  // namespace simcuda
