// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/heap/pending_frees.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace stalloc::serve {

// The streams of a green context accept events of its primary context, which still exist when the green context has
// been destroyed while its work goes on. So the heap's context is tried before the stream's own.
CUresult PendingFrees::record_event(StreamKey stream, CUevent unused, CUcontext* context, CUevent* event) noexcept {
  *event = unused;
  CUcontext of_stream = nullptr;
  CUresult result = driver_.stream_context(stream.handle, &of_stream);
  if (result == CUDA_SUCCESS) result = record_in(of_stream, stream, context, event);
  if (result != CUDA_SUCCESS && *event != nullptr) driver_.destroy_event(*event);
  return result;
}

CUresult PendingFrees::record_in(CUcontext of_stream, StreamKey stream, CUcontext* context, CUevent* event) noexcept {
  const ContextScope scope(driver_, of_stream);  // a default stream is the one of the current context
  CUresult result = CUDA_ERROR_INVALID_CONTEXT;
  if (!scope.ok()) return result;
  for (const CUcontext each : {context_, of_stream}) {
    if (*event == nullptr) result = create_event(each, event);
    if (*event != nullptr) {
      *context = each;
      result = driver_.record_event(*event, stream.handle);
      if (result == CUDA_SUCCESS) return result;
      driver_.destroy_event(std::exchange(*event, nullptr));
    }
    if (each == of_stream) break;
  }
  return result;
}

CUresult PendingFrees::create_event(CUcontext context, CUevent* event) noexcept {
  const ContextScope scope(driver_, context);
  return scope.ok() ? driver_.create_event(event) : CUDA_ERROR_INVALID_CONTEXT;
}

void PendingFrees::add(CUcontext context, StreamKey stream, const Free& free) {
  if (context != context_) make_room_for_spent();
  auto queue = std::find_if(queues_.begin(), queues_.end(), [&](const Queue& each) {
    return each.context == context && each.stream == stream && each.endings == 0;
  });
  if (queue == queues_.end()) {
    Queue fresh{context, stream, {free}};
    queues_.push_back(std::move(fresh));
    queue = std::prev(queues_.end());
  } else {
    queue->frees.push_back(free);
  }
  queue->frees.back().number = ++latest_number_;
  bytes_ += free.entry.bytes;
}

// Makes room for one more than there may be now. Throws std::bad_alloc.
void PendingFrees::make_room_for_spent() {
  std::size_t most = spent_.size() + 1;
  for (const Queue& queue : queues_) most += queue.context == context_ ? 0 : queue.frees.size();
  if (most > spent_.capacity()) spent_.reserve(2 * most);
}

CUevent PendingFrees::take_spent(CUcontext context) noexcept {
  const auto is_usable = [&](const Spent& each) { return each.context == context && each.endings == 0; };
  const auto found = std::find_if(spent_.begin(), spent_.end(), is_usable);
  if (found == spent_.end()) return nullptr;
  const CUevent event = found->event;
  *found = spent_.back();
  spent_.pop_back();
  return event;
}

PendingFrees::State PendingFrees::query(const Queue& queue) noexcept {
  if (queue.endings > 0) return State::Pending;
  const CUevent event = queue.frees[queue.failed].event;
  if (event == nullptr) return State::Complete;
  const CUresult result = driver_.query_event(event);
  if (result == CUDA_ERROR_NOT_READY) return State::Pending;
  return result == CUDA_SUCCESS ? State::Complete : State::Failed;
}

// Calls the callback at most once for each free.
void PendingFrees::notify(Free& free) const noexcept {
  if (on_complete_ != nullptr && free.owner) on_complete_(device_, free.entry.address, *free.owner);
  free.owner.reset();
}

void PendingFrees::notify_all() noexcept {
  for (Queue& queue : queues_) {
    for (Free& free : queue.frees) notify(free);
  }
}

void PendingFrees::remove_empty() noexcept {
  std::erase_if(queues_, [](const Queue& queue) { return queue.frees.empty(); });
}

bool PendingFrees::may_complete(std::uint64_t number) const noexcept {
  return std::any_of(queues_.begin(), queues_.end(), [&](const Queue& queue) {
    return queue.endings == 0 && queue.failed < queue.frees.size() && queue.frees[queue.failed].number <= number;
  });
}

void PendingFrees::before_context_end(CUcontext context) noexcept {
  for (Queue& queue : queues_) {
    if (queue.context == context) ++queue.endings;
  }
  for (Spent& spent : spent_) {
    if (spent.context == context) ++spent.endings;
  }
}

void PendingFrees::after_context_end(CUcontext context, bool ended) noexcept {
  for (Queue& queue : queues_) {
    if (queue.context != context || queue.endings == 0) continue;
    --queue.endings;
    if (!ended) continue;
    for (Free& free : queue.frees) free.event = nullptr;
  }
  for (Spent& spent : spent_) {
    if (spent.context != context || spent.endings == 0) continue;
    --spent.endings;
    if (ended) spent.event = nullptr;
  }
  std::erase_if(spent_, [](const Spent& spent) { return spent.event == nullptr; });
}

void PendingFrees::clear(bool context_lives) noexcept {
  notify_all();
  for (Queue& queue : queues_) {
    if (queue.endings > 0 || (!context_lives && queue.context == context_)) continue;
    for (Free& free : queue.frees) {
      if (free.event != nullptr) driver_.destroy_event(free.event);
    }
  }
  for (const Spent& spent : spent_) {
    if (spent.endings == 0) driver_.destroy_event(spent.event);
  }
  queues_.clear();
  spent_.clear();
  bytes_ = 0;
}

}  // namespace stalloc::serve
