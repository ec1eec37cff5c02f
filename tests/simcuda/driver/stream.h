// SPDX-License-Identifier: Apache-2.0
// Streams: handles, the default streams and their implicit order, and how work is put onto a timeline.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/simcuda/driver/context.h"
#include "tests/simcuda/driver/timeline.h"

namespace simcuda {

struct Capture;

struct Stream {
  Context* context = nullptr;
  unsigned flags = CU_STREAM_DEFAULT;
  int priority = 0;
  bool closed = false;    // destroyed by the program
  bool orphaned = false;  // its context is destroyed
  std::shared_ptr<Timeline> timeline;
  std::shared_ptr<Capture> capture;     // null unless captured; guarded by stream_mutex()
  std::vector<std::uint64_t> frontier;  // what it is ordered behind in its capture (capture.h); guarded likewise
};

// Guards the set of streams, and gives the submissions to all streams of the process one order.
std::mutex& stream_mutex();

// As `enter`, where no context is needed for a created stream, which names its own (H200, driver 580).
CUresult enter_stream(CUstream handle, Context** context);
// The stream a handle names in the calling thread: the context's legacy stream, the thread's own, or a created one.
// Fails with the sticky error of the stream's context when it has one.
CUresult find_stream(Context& context, CUstream handle, std::shared_ptr<Stream>* stream);

// Checks that the stream still takes work: another thread may have ended it, or its context. Pre: stream_mutex() is
// held.
CUresult check_open(const Stream& stream);

// Waits while the stream's queue is full, as CUDA does before it gives a stream work. Other calls wait meanwhile
// (room.h), for as long as what is returned exists; it is null if there was room. Pre: stream_mutex() is not held.
[[nodiscard]] std::unique_ptr<RoomWaits::Waiting> wait_for_room(const Stream& stream);

// Pre of both: stream_mutex() is not held.
bool is_captured(const Stream& stream);
bool is_legacy(const Stream& stream);  // the default stream of its context

// Puts work onto the stream, or into the graph into which the stream is captured. Blocking streams and the legacy
// stream wait for each other as CUDA says. If `point` is not null it receives the moment when the work is done, or an
// empty point during a capture.
CUresult submit(Stream& stream, std::function<void()> run, std::vector<Point> after = {}, Point* point = nullptr);

// `submit` for a stream that is not captured; for `takes_no_time` see Timeline::submit. Pre: stream_mutex() is held.
CUresult submit_locked(Stream& stream, std::function<void()> run, std::vector<Point> after, Point* point,
                       bool takes_no_time = false);

// `submit` for work that cannot be captured.
CUresult submit_eager(Stream& stream, std::function<void()> run, Point* point);
// The same, and waits for the end of the work, for the synchronous forms of calls.
CUresult submit_and_wait(Stream& stream, std::function<void()> run);

// A stream of the context, without a handle. Pre: stream_mutex() is held.
std::shared_ptr<Stream> make_stream(Context& context, unsigned flags, int priority);

// The same with a handle. Pre: stream_mutex() is not held.
CUresult create_stream(Context& context, CUstream* stream, unsigned flags, int priority);

// Ends every stream of the context, with their captures. Queued work still runs; returns its ends. Pre: stream_mutex()
// is held.
std::vector<Point> close_streams(Context& context);

// The end of all work queued so far on the context's streams, and on those of its green contexts.
std::vector<Point> pending(Context& context);

}  // namespace simcuda
