// SPDX-License-Identifier: Apache-2.0
// Frees that wait for an event: on streams that other streams cannot be ordered after, or should not wait for.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "interpose/base/stream_key.h"
#include "interpose/serve/driver/driver.h"
#include "interpose/serve/heap/live_table.h"
#include "interpose/serve/streams/stream_order.h"

namespace stalloc::serve {

// Blocks whose bytes are free once an event behind their free has completed. Each stream has a queue of its own, since
// its events complete in their order: a stream that is slow delays nothing that was freed on others. Not thread-safe.
// Never throws, except for `add`. Never waits.
class PendingFrees {
 public:
  struct Free {
    LiveEntry entry;
    CUevent event = nullptr;              // null: its context has ended
    std::optional<StreamKey> owner;       // the stream that HeapOptions::on_free_complete is told of
    StreamOrdinal preferred = kNoStream;  // that the bytes are offered to first: the owner
    std::uint64_t number = 0;             // given by `add`: later frees have larger ones
  };

  // `driver` must outlive it.
  explicit PendingFrees(Driver& driver) noexcept : driver_(driver) {}

  [[nodiscard]] bool empty() const noexcept { return queues_.empty(); }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }  // as requested
  [[nodiscard]] std::uint64_t latest_number() const noexcept { return latest_number_; }

  // `free` has been recorded on `stream`, which is of `context`; its event is owned from now on. May throw
  // std::bad_alloc, and owns nothing then.
  void add(CUcontext context, StreamKey stream, const Free& free);

  // Calls `on_complete(Free&)` for the frees whose events have completed, and forgets them; true when there were any.
  // Those of each queue are queried, the oldest first, until one is pending. A free whose event the driver cannot tell
  // of stays. Of the streams whose work is pending, at max_streams `max_streams` are looked at; the next call goes on
  // with others.
  template <class OnComplete>
  bool collect(std::size_t max_streams, OnComplete on_complete) {
    bool any = false;
    const std::size_t count = queues_.size();
    std::size_t pending = 0;
    std::size_t looked_at = 0;
    for (; looked_at < count && pending < max_streams; ++looked_at) {
      Queue& queue = queues_[(next_ + looked_at) % count];
      queue.unknown = 0;
      while (queue.unknown < queue.frees.size()) {
        const State state = poll(queue);
        if (state == State::Pending) {
          ++pending;
          break;
        }
        if (state == State::Unknown) {
          ++queue.unknown;
          continue;
        }
        Free free = queue.frees[queue.unknown];
        queue.frees.erase(queue.frees.begin() + static_cast<std::ptrdiff_t>(queue.unknown));
        bytes_ -= free.entry.bytes;
        on_complete(free);
        any = true;
      }
    }
    next_ = count == 0 ? 0 : (next_ + looked_at) % count;
    if (any) remove_empty();
    return any;
  }
  // True while a free up to that number may still complete, as far as the driver told when it was last asked.
  [[nodiscard]] bool may_complete(std::uint64_t number) const noexcept;

  // Calls `action(Free&)` for every one.
  template <class Action>
  void for_each(Action action) {
    for (Queue& queue : queues_) {
      for (Free& free : queue.frees) action(free);
    }
  }

  // A context is about to end, and then it has, or not (`ended`): CUDA lets nobody touch its events any more, and none
  // of its work is left.
  void before_context_end(CUcontext context) noexcept;
  void after_context_end(CUcontext context, bool ended) noexcept;
  // Forgets all of them. Destroys the events, except those of contexts that end and, unless `lives`, those of
  // `context`.
  void clear(CUcontext context, bool lives) noexcept;

 private:
  struct Queue {
    CUcontext context = nullptr;
    StreamKey stream;
    std::deque<Free> frees;
    bool context_ending = false;
    std::size_t unknown =
        0;  // of the oldest frees, so many whose events the driver could not tell of when it was asked
  };
  enum class State { Complete, Pending, Unknown };

  // Asks for the oldest free of the queue that is not unknown; destroys its event if it is over. Pre: there is one.
  State poll(const Queue& queue) noexcept;
  void remove_empty() noexcept;

  Driver& driver_;
  std::vector<Queue> queues_;  // none is empty between calls
  std::size_t next_ = 0;       // that `collect` begins with
  std::uint64_t bytes_ = 0;
  std::uint64_t latest_number_ = 0;
};

}  // namespace stalloc::serve
