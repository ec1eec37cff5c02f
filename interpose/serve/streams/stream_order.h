// SPDX-License-Identifier: Apache-2.0
// Order between streams: invariant 2, bytes freed on one stream are used on another only behind an event that the
// driver orders, or when the work before the free is known to be complete.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "interpose/base/stream_key.h"
#include "interpose/serve/driver/driver.h"
#include "interpose/serve/streams/event_order.h"
#include "interpose/serve/streams/free_events.h"
#include "interpose/serve/streams/free_marks.h"
#include "interpose/serve/streams/shared_frees.h"
#include "interpose/serve/streams/stream_clocks.h"

namespace stalloc::serve {

// Every free gets a sequence number. ordered(S, T) is the number up to which stream S is ordered behind T's frees (a
// vector clock, stream_clocks.h), complete_up_to(T) the number up to which T's frees are known to be complete. Both
// grow by what is done here, and by what the program itself does with its events and by synchronising (event_order.h).
//
//     stream T   --- work --- free #7 --- event --- more work --->
//                                            \_ wait: ordered_[S][T] = 7
//     stream S   ------------------------------ allocation of T's bytes --- work --->
//
// The event is recorded when the program frees: where several streams use memory, if the bytes may serve large
// requests; where the plan knows that another stream will want them; where T is a thread's own default stream, which no
// other thread can name. Every other free costs no driver call. Of such a free another stream may use the bytes when it
// is known to be complete, which an event tells that is recorded when somebody asks. No stream waits for that one, for
// it also stands behind what T was given since the free, and that may wait for S: by a host function, by a kernel that
// waits for a value in memory, by other processes. Only when the device has no more memory is such a wait better than
// none (`allow_late_events`). Whatever the driver refuses leaves the bytes unordered, and the caller must not serve
// them.
//
// In a program with streams that synchronise with the legacy stream an event on that is work which those wait for, and
// which waits for theirs. Memory that is freed there alone makes the same order, but no other moment does. So no event
// is recorded there when somebody asks, unless all these streams are idle; instead one free of many has its event at
// once. Not thread-safe: the heap's lock covers it.
class StreamOrder {
 public:
  // `context` is the one all streams belong to. `events` is told when a second stream uses memory; may be null. Throws
  // std::bad_alloc.
  StreamOrder(Driver& driver, CUcontext context, std::uint64_t physical_bytes, std::uint64_t page_bytes,
              EventOrder* events = nullptr);
  ~StreamOrder();
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;

  // Forgets every stream, and records no event from now on. `destroy_events`: the context lives and is current; its end
  // destroys its events itself.
  void close(bool destroy_events) noexcept;

  [[nodiscard]] CUcontext context() const noexcept { return context_; }

  // The stream's ordinal, given on first sight. kNoStream when it belongs to another context, or when too many streams
  // have work pending to tell them apart. `context_is_current`: the calling thread's context is known to be ours, so
  // that a default stream need not be asked for its own.
  StreamOrdinal ordinal(StreamKey key, bool context_is_current = false) noexcept;
  // The same for a stream that is not known to use memory of ours.
  StreamOrdinal ordinal_of_user(StreamKey key, bool context_is_current = false) noexcept;
  // The same if this was the stream looked up last, else kNoStream; changes nothing. Pre, for a default stream: the
  // calling thread's context is ours.
  [[nodiscard]] StreamOrdinal latest_ordinal(StreamKey key) const noexcept {
    return key == latest_key_ ? latest_ : kNoStream;
  }

  // Orders the use of free bytes on `stream` behind every free of them. False: refused, the bytes may still be in use.
  [[nodiscard]] bool order(PhysicalRanges ranges, StreamOrdinal stream) noexcept;
  // For bytes that any stream may use at once (cudaMalloc): true only when every free of them is complete.
  [[nodiscard]] bool is_complete(PhysicalRanges ranges) noexcept;
  // True only when every free up to the number is complete.
  [[nodiscard]] bool is_complete(std::uint64_t number) noexcept;
  // The same as far as it is known, without asking the device.
  [[nodiscard]] bool is_known_complete(std::uint64_t number) const noexcept;
  // `order`, or for all streams at once, which kNoStream stands for, `is_complete`.
  [[nodiscard]] bool make_ready(PhysicalRanges ranges, StreamOrdinal stream) noexcept {
    return stream == kNoStream ? is_complete(ranges) : order(ranges, stream);
  }
  // `order`, but false, with no wait made, where the stream would wait for another one behind which the program has
  // ordered it before: it will do so for these frees, too, and the stream could use the bytes a little later without
  // that wait.
  [[nodiscard]] bool order_without_avoidable_wait(PhysicalRanges ranges, StreamOrdinal stream) noexcept;

  // True when another stream freed some of them last.
  [[nodiscard]] bool is_foreign(PhysicalRanges ranges, StreamOrdinal stream) const noexcept {
    bool foreign = false;
    if (!marks_.has_only(ranges, stream)) {
      for_each_claim(ranges, stream, [&](StreamOrdinal, Free) { foreign = true; });
    }
    return foreign;
  }

  // Whether a stream may also wait for an event that was recorded after the free.
  void allow_late_events(bool may) noexcept { late_events_allowed_ = may; }

  // The program makes streams that synchronise with the legacy stream. Call it before they have work.
  void blocking_streams_exist() noexcept;

  // Numbers a free on `stream`. Call it when the program frees, and `freed` with the ranges before the next free is
  // numbered. `for_others`: other streams may want to wait for it; where several use memory, it has its event at once.
  std::uint64_t assign_free_number(StreamOrdinal stream, bool for_others) noexcept;
  // The bytes were freed on `stream`, by the free with that number. `event_now`: another stream will want them.
  void mark_freed(PhysicalRanges ranges, StreamOrdinal stream, std::uint64_t number, bool event_now) noexcept;
  void mark_freed(PhysicalRanges ranges, StreamOrdinal stream, bool event_now) noexcept {
    mark_freed(ranges, stream, assign_free_number(stream, false), event_now);
  }
  // The latest free was of these bytes, on `stream`, and work of `user`, another stream, may still use them
  // (shared_frees.h).
  void mark_also_used(PhysicalRanges ranges, StreamOrdinal stream, StreamOrdinal user) noexcept;
  // The bytes were freed and the device is done with them.
  void clear_marks(PhysicalRanges ranges) noexcept { marks_.clear(ranges); }

  // Waiting for the whole context takes three steps, the middle one without the heap's lock: take a number, wait
  // (free_fence.h), say that every free up to the number is complete.
  std::uint64_t take_number() noexcept { return clocks_.take_number(); }
  // The number of the latest free, if none was taken since.
  [[nodiscard]] std::uint64_t latest_number() const noexcept { return clocks_.latest_number(); }
  void mark_all_complete(std::uint64_t number) noexcept { clocks_.mark_all_complete(number); }

  // Records an event behind the frees of each stream that has none there yet: once the program has synchronised with
  // the stream, asking says that they are complete.
  void record_free_events() noexcept;
  // Finds out which frees are complete, with a limited number of queries to the device. It never waits for work.
  void poll_thoroughly() noexcept;
  // The same, for who asks often: it asks once for each event that is pending, and records one only on a stream that
  // has none such. What completes a little later is known at the next call.
  void poll() noexcept;

  // Pre: the stream is still alive. Its handle may name another stream afterwards.
  void stream_destroyed(CUstream stream) noexcept;

  // What is known of the order; usable without the heap's lock.
  [[nodiscard]] StreamClocks& clocks() noexcept { return clocks_; }
  // The stream's clock, made on first sight; null: it has none, since there are too many streams. Valid until the
  // stream is destroyed. Pre: the stream is of our context.
  StreamClock* clock(StreamKey key) noexcept;

  // More than one stream has used memory.
  [[nodiscard]] bool has_several_users() const noexcept { return users_ > 1; }

  [[nodiscard]] std::uint64_t waits() const noexcept { return waits_; }
  // Waits that were spared because the program had made the order itself.
  [[nodiscard]] std::uint64_t spared_waits() const noexcept { return spared_waits_; }

 private:
  struct Stream {
    StreamKey key;
    bool alive = false;         // names a stream of the program
    bool uses_memory = false;   // else it is known for its events only
    std::uint64_t used_at = 0;  // number when it was last looked up, for choosing the idlest
    FreeEvents events;
  };

  // A free of a stream's, up to which it must be over, or `exact`ly which.
  struct Free {
    std::uint64_t number = 0;
    bool exact = false;
  };
  // Calls `claim(owner, free)` for the streams that `stream` must be ordered behind to use the bytes; kNoStream: all
  // that have a claim on them.
  template <class Claim>
  void for_each_claim(PhysicalRanges ranges, StreamOrdinal stream, Claim claim) const {
    marks_.for_each_claim(ranges, stream, [&](FreeMark mark, FreeMarks::Latest latest) {
      shared_.for_each_stream(mark, stream, stream_count_, [&](StreamOrdinal owner) {
        const std::uint64_t number = std::min(latest.sequence, last_free(owner));
        claim(owner, Free{number, latest.exact && number == latest.sequence});
      });
    });
  }
  FreeMark mark_for_pair(StreamOrdinal owner, StreamOrdinal user) noexcept;
  FreeMark mark_with_users(PhysicalRanges ranges, StreamOrdinal stream) noexcept;
  StreamOrdinal find(StreamKey key) const noexcept;
  StreamOrdinal admit(StreamKey key, StreamOrdinal stream) noexcept;
  StreamOrdinal find_unused() const noexcept;
  StreamOrdinal reclaim() noexcept;
  bool is_idle(StreamOrdinal stream) noexcept;

  void record_free_event(StreamOrdinal stream) noexcept;
  [[nodiscard]] const FreeEvent* event_to_wait_for(StreamOrdinal owner, Free free) const noexcept;
  bool wait_for(StreamOrdinal waiter, StreamOrdinal owner, Free free) noexcept;
  bool query_complete(StreamOrdinal owner, std::uint64_t number) noexcept;
  bool order_slowly(PhysicalRanges ranges, StreamOrdinal stream) noexcept;
  const FreeEvent* record(StreamOrdinal ordinal, bool at_free) noexcept;
  const FreeEvent* record_late_event(StreamOrdinal ordinal) noexcept;
  [[nodiscard]] bool is_barrier(const Stream& stream) const noexcept {
    return has_blocking_streams_ && stream.key.handle == CU_STREAM_LEGACY;
  }
  bool query_event(StreamOrdinal owner, const FreeEvent& event) noexcept;
  [[nodiscard]] std::uint64_t last_free(StreamOrdinal stream) const noexcept { return clocks_.latest_free(stream); }
  [[nodiscard]] std::uint64_t ordered(StreamOrdinal waiter, StreamOrdinal owner) noexcept;
  void set_ordered(StreamOrdinal waiter, StreamOrdinal owner, std::uint64_t number) noexcept;
  void count_spared_wait(StreamOrdinal waiter, StreamOrdinal owner, std::uint64_t number) noexcept;
  static std::uint64_t pair(StreamOrdinal waiter, StreamOrdinal owner) noexcept {
    return std::uint64_t{waiter} * (kMaxStreams + 1) + owner;
  }

  StreamKey latest_key_;              // looked up last,
  StreamOrdinal latest_ = kNoStream;  // and its ordinal; kNoStream: the stream is gone
  Driver& driver_;
  CUcontext context_;
  EventOrder* events_;
  FreeMarks marks_;
  SharedFrees shared_;
  std::unique_ptr<Stream[]> streams_;  // [1, stream_count_]
  StreamClocks clocks_;
  LazyTable<std::uint64_t> ordered_;  // by pair, as far as one of the two has no clock
  LazyTable<std::uint64_t> waited_;   // by pair: what ordered_ would say if the program had made no order itself
  LazyTable<bool> program_orders_;    // by pair: it has spared us a wait
  StreamOrdinal stream_count_ = 0;
  bool closed_ = false;  // no event is recorded any more
  bool has_blocking_streams_ = false;
  bool late_events_allowed_ = false;
  unsigned users_ = 0;  // how often an ordinal was first used for memory
  std::uint64_t waits_ = 0;
  std::uint64_t spared_waits_ = 0;
};

}  // namespace stalloc::serve
