// SPDX-License-Identifier: Apache-2.0
// Frees that wait for an event: on streams that other streams cannot be ordered after, or should not wait for.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "interpose/base/stream_key.h"
#include "interpose/serve/driver/driver.h"
#include "interpose/serve/dynamic/heap_options.h"
#include "interpose/serve/heap/live_table.h"
#include "interpose/serve/streams/stream_order.h"

namespace stalloc::serve {

// Blocks that can be reused once an event recorded after their free has completed. Each stream has a queue of its own,
// since its events complete in order: a slow stream does not delay what was freed on other streams.
//
// Not thread-safe: the heap's lock protects it, except for `record_event` and `program_synchronized`, which need no
// lock. Only `add` throws. Nothing waits, but `record_event` may wait for room in the queue of its stream.
class PendingFrees {
 public:
  struct Free {
    LiveEntry entry;
    CUevent event = nullptr;              // null: its context has ended, so the free is complete
    std::optional<StreamKey> owner;       // the argument of the callback; nothing: the callback is not called
    StreamOrdinal preferred = kNoStream;  // the ordinal of `owner`, whose requests get the bytes first
    std::uint64_t number = 0;             // assigned by `add`; grows by one
  };
  // Numbers of streams for `collect`.
  static constexpr std::size_t kStreamsPerQuery = 8;
  static constexpr std::size_t kAllStreams = ~std::size_t{0};

  // The heap of `device` serves `context`. `on_complete` is called once for each free with an owner when it is
  // complete, or when it is given up (`give_up`, `notify_all`, `clear`); it may be null. `driver` must outlive this
  // object.
  PendingFrees(Driver& driver, int device, CUcontext context, FreeCompleteCallback on_complete) noexcept
      : driver_(driver), device_(device), context_(context), on_complete_(on_complete) {}

  [[nodiscard]] bool empty() const noexcept { return queues_.empty(); }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }  // as requested
  [[nodiscard]] std::uint64_t latest_number() const noexcept { return latest_number_; }

  // Records an event on `stream`: `unused`, which is of the heap's context, or one that is created, if it is null or
  // cannot be recorded there. The caller owns the event; `context` receives its context. Returns the driver's error; no
  // event is left then.
  CUresult record_event(StreamKey stream, CUevent unused, CUcontext* context, CUevent* event) noexcept;
  // Adds a free whose event `record_event` has recorded, and takes the event. Throws std::bad_alloc; the caller then
  // still owns the event.
  void add(CUcontext context, StreamKey stream, const Free& free);
  // Calls the callback for a free that could not be added.
  void give_up(Free free) const noexcept { notify(free); }

  // Call after the program has synchronized with a stream, an event or the context.
  void program_synchronized() noexcept { synchronized_.store(true, std::memory_order_relaxed); }
  // Call at each request. Returns how many streams `collect` should query now; 0: none. A query costs as much as a
  // request, so a few streams are queried at every sixteenth request. All are queried at the first request after the
  // program has synchronized, since it may expect to get bytes whose work is complete.
  [[nodiscard]] std::size_t streams_to_query() noexcept {
    if (empty()) return 0;
    const bool synchronized = synchronized_.exchange(false, std::memory_order_relaxed);
    if (!synchronized && requests_until_query_-- > 0) return 0;
    requests_until_query_ = kRequestsBetweenQueries - 1;
    return synchronized ? kAllStreams : kStreamsPerQuery;
  }
  // Removes the frees whose events have completed, and calls `reclaim(const Free&)` for each, which takes the event if
  // there is one: it is of the heap's context, and nothing uses it any more. True if there were any such frees.
  // The events of each stream are queried from the oldest on, until one is pending. At most `max_streams` streams with
  // pending work are queried; the next call continues with the others. A free whose event the driver cannot query
  // stays.
  template <class Reclaim>
  bool collect(std::size_t max_streams, Reclaim reclaim) {
    bool any = false;
    const std::size_t count = queues_.size();
    std::size_t pending = 0;
    std::size_t visited = 0;
    for (; visited < count && pending < max_streams; ++visited) {
      Queue& queue = queues_[(next_ + visited) % count];
      queue.failed = 0;
      while (queue.failed < queue.frees.size()) {
        const State state = query(queue);
        if (state == State::Pending) {
          ++pending;
          break;
        }
        if (state == State::Failed) {
          ++queue.failed;
          continue;
        }
        Free free = queue.frees[queue.failed];
        queue.frees.erase(queue.frees.begin() + static_cast<std::ptrdiff_t>(queue.failed));
        bytes_ -= free.entry.bytes;
        if (queue.context != context_ && free.event != nullptr)
          spent_.push_back({queue.context, std::exchange(free.event, nullptr)});  // `add` made room
        notify(free);
        reclaim(free);
        any = true;
      }
    }
    next_ = count == 0 ? 0 : (next_ + visited) % count;
    if (any) remove_empty();
    return any;
  }
  // Returns an event of that context, which is not the heap's, that a complete free has left; null: there is none. The
  // caller owns it then. `collect` destroys none, since that would wait while any thread waits for room in the queue of
  // a stream of that context (docs/decisions/17-full-queues.md).
  CUevent take_spent(CUcontext context) noexcept;
  // True if a free up to that number may still complete, as far as the latest queries showed.
  [[nodiscard]] bool may_complete(std::uint64_t number) const noexcept;

  // Calls the callback for all frees, and not again later.
  void notify_all() noexcept;
  // Between the two calls, no event of the context is used. `ended`: the context has ended, and none of its work is
  // left, so its frees are complete. Several threads may be between the two calls at once, since each may release a
  // reference to the context.
  void before_context_end(CUcontext context) noexcept;
  void after_context_end(CUcontext context, bool ended) noexcept;
  // Calls the callback for all frees and removes them without reclaiming. Destroys their events, except those of
  // contexts that are ending and, unless `context_lives`, those of the heap's context.
  void clear(bool context_lives) noexcept;

 private:
  struct Queue {
    CUcontext context = nullptr;
    StreamKey stream;
    std::deque<Free> frees;
    unsigned endings = 0;    // how many threads may be ending the context now
    std::size_t failed = 0;  // the events of so many of the oldest frees could not be queried last time
  };
  struct Spent {
    CUcontext context = nullptr;
    CUevent event = nullptr;
    unsigned endings = 0;  // as for Queue
  };
  enum class State { Complete, Pending, Failed };
  static constexpr std::uint32_t kRequestsBetweenQueries = 16;

  CUresult record_in(CUcontext of_stream, StreamKey stream, CUcontext* context, CUevent* event) noexcept;
  CUresult create_event(CUcontext context, CUevent* event) noexcept;
  // Queries the free at index `failed`. Pre: there is such a free.
  State query(const Queue& queue) noexcept;
  void notify(Free& free) const noexcept;
  void remove_empty() noexcept;
  void make_room_for_spent();

  Driver& driver_;
  const int device_;
  const CUcontext context_;
  const FreeCompleteCallback on_complete_;
  std::vector<Queue> queues_;  // none is empty between calls
  std::vector<Spent> spent_;   // has room for the events of all pending frees of other contexts
  std::size_t next_ = 0;       // the queue with which `collect` begins
  std::uint64_t bytes_ = 0;
  std::uint64_t latest_number_ = 0;
  std::uint32_t requests_until_query_ = 0;
  std::atomic<bool> synchronized_{false};  // the program has synchronized since the latest queries
};

}  // namespace stalloc::serve
