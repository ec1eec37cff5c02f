// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/heap/pending_frees.h"

#include <algorithm>

namespace stalloc::serve {

void PendingFrees::add(CUcontext context, StreamKey stream, const Free& free) {
  auto queue = std::find_if(queues_.begin(), queues_.end(), [&](const Queue& each) {
    return each.context == context && each.stream == stream && !each.context_ending;
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

PendingFrees::State PendingFrees::poll(const Queue& queue) noexcept {
  if (queue.context_ending) return State::Pending;
  const CUevent event = queue.frees[queue.unknown].event;
  if (event == nullptr) return State::Complete;
  const CUresult result = driver_.query_event(event);
  if (result == CUDA_ERROR_NOT_READY) return State::Pending;
  if (result != CUDA_SUCCESS) return State::Unknown;
  driver_.destroy_event(event);
  return State::Complete;
}

void PendingFrees::remove_empty() noexcept {
  std::erase_if(queues_, [](const Queue& queue) { return queue.frees.empty(); });
}

bool PendingFrees::may_complete(std::uint64_t number) const noexcept {
  return std::any_of(queues_.begin(), queues_.end(), [&](const Queue& queue) {
    return !queue.context_ending && queue.unknown < queue.frees.size() && queue.frees[queue.unknown].number <= number;
  });
}

void PendingFrees::before_context_end(CUcontext context) noexcept {
  for (Queue& queue : queues_) {
    if (queue.context == context) queue.context_ending = true;
  }
}

void PendingFrees::after_context_end(CUcontext context, bool ended) noexcept {
  for (Queue& queue : queues_) {
    if (queue.context != context || !queue.context_ending) continue;
    queue.context_ending = false;
    if (!ended) continue;
    for (Free& free : queue.frees) free.event = nullptr;
  }
}

void PendingFrees::clear(CUcontext context, bool lives) noexcept {
  for (Queue& queue : queues_) {
    if (queue.context_ending || (!lives && queue.context == context)) continue;
    for (Free& free : queue.frees) {
      if (free.event != nullptr) driver_.destroy_event(free.event);
    }
  }
  queues_.clear();
  bytes_ = 0;
}

}  // namespace stalloc::serve
