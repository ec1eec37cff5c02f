// Streams: handles, the default streams and their implicit order, and how work gets onto a timeline.
#pragma once

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
  bool closed = false;  // destroyed by the program
  std::shared_ptr<Timeline> timeline;
  std::shared_ptr<Capture> capture;  // null unless capturing; guarded by stream_mutex()
};

// Guards the set of streams and makes submission one order over all streams of the process.
std::mutex& stream_mutex();

// The stream a handle names in the calling thread: the context's legacy stream, the thread's own, or a created one.
CUresult find_stream(Context& context, CUstream handle, std::shared_ptr<Stream>* stream);

// Puts work onto the stream, or into the graph that the stream is capturing. Blocking streams and the legacy stream
// wait for each other as CUDA says. `point`, when wanted, is the moment the work is done; empty while capturing.
CUresult submit(Stream& stream, std::function<void()> run, std::vector<Point> after = {}, Point* point = nullptr);

// `submit` for what cannot be captured.
CUresult submit_eager(Stream& stream, std::function<void()> run, Point* point);

std::shared_ptr<Stream> make_stream(Context& context, unsigned flags, int priority);

// Ends every stream of the context; queued work still runs.
void close_streams(Context& context);

// The end of all work queued so far on the context's streams.
std::vector<Point> pending(Context& context);

}  // namespace simcuda
