// SPDX-License-Identifier: Apache-2.0
#include "interpose/torch/join_streams.h"

#include <algorithm>
#include <new>
#include <utility>

#include "interpose/session/session.h"

namespace stalloc::torch {
namespace {

// Records an event behind all work of its context. During a capture, which this would break, nothing is recorded. That
// holds also where captures may begin unseen: CUDA does not tell of a context whether any of its streams is captured,
// and nothing else lets a stream wait for streams that are not known. The caller then waits itself (context_wait.h).
CUresult record_context(CUevent event, CUcontext context) noexcept {
  const serve::CaptureGate::WorkLock work(Session::captures().gate(), serve::CaptureGate::kAnyStream);
  if (Session::captures().may_be_active()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  return Session::cuda().record_context(event, context);
}

// Records an event, which is created if it is null, behind the work that `stream` was given so far.
CUresult record(serve::Driver& driver, const StreamInContext& stream, CUevent* event) noexcept {
  const serve::ContextScope scope(driver, stream.context);  // an event is recorded on streams of its own context
  if (!scope.ok()) return CUDA_ERROR_INVALID_CONTEXT;
  if (*event == nullptr) {
    if (const CUresult result = driver.create_event(event); result != CUDA_SUCCESS) return result;
  }
  return stream.stream == nullptr ? record_context(*event, stream.context) : driver.record_event(*event, stream.stream);
}

// Makes `waiter`, a stream of the current context, wait for the work that `stream` was given so far. Creating and
// destroying an event would wait while any thread waits for room in the queue of a stream
// (docs/decisions/17-full-queues.md), so the heap's events are used where they can be.
CUresult add_wait(serve::Driver& driver, serve::Heap& heap, CUstream waiter, const StreamInContext& stream) noexcept {
  const bool is_of_heap = stream.context == heap.context();
  CUevent event = is_of_heap ? heap.take_unused_event() : nullptr;
  CUresult result = record(driver, stream, &event);
  if (result == CUDA_SUCCESS) result = driver.wait_event(waiter, event);
  if (event == nullptr) return result;
  if (is_of_heap) {
    heap.give_back_event(event);
  } else {
    driver.destroy_event(event);  // CUDA keeps it until the waits on it are over
  }
  return result;
}

}  // namespace

// Returns the entry for exactly these streams, else an unused one, else the least recently used one.
JoinStreams::Entry& JoinStreams::entry_for(std::vector<StreamInContext> streams) {
  std::sort(streams.begin(), streams.end());
  Entry* oldest = &entries_.front();
  for (Entry& entry : entries_) {
    if (entry.streams == streams) return entry;
    if (entry.used_at < oldest->used_at) oldest = &entry;
  }
  oldest->streams = std::move(streams);
  return *oldest;
}

CUresult JoinStreams::join(serve::Driver& driver, serve::Heap& heap, std::span<const StreamInContext> streams,
                           CUstream* joined) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    Entry& entry = entry_for({streams.begin(), streams.end()});
    entry.used_at = ++clock_;
    if (entry.joined == nullptr) {
      if (const CUresult result = Session::cuda().create_stream(&entry.joined); result != CUDA_SUCCESS) return result;
    }
    // The handle may have been that of a stream that was destroyed, on which blocks are freed later. So the work that
    // this stream had is waited for, too, if the driver can; after a capture, during which it cannot, at the next call.
    if (!entry.is_behind_old_work) {
      const CUresult result = add_wait(driver, heap, entry.joined, {nullptr, heap.context()});
      const bool in_capture = result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
      if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_SUPPORTED && !in_capture) return result;
      entry.is_behind_old_work = !in_capture;
    }
    for (const StreamInContext& stream : entry.streams) {
      if (const CUresult result = add_wait(driver, heap, entry.joined, stream); result != CUDA_SUCCESS) return result;
    }
    *joined = entry.joined;
    return CUDA_SUCCESS;
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

}  // namespace stalloc::torch
