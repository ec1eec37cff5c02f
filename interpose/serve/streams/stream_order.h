// SPDX-License-Identifier: Apache-2.0
// The order between streams, which keeps invariant 2: bytes freed on one stream are used on another only after an event
// that the driver orders, or when the work before the free is known to be complete.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "interpose/base/stream_key.h"
#include "interpose/serve/driver/driver.h"
#include "interpose/serve/streams/event_order.h"
#include "interpose/serve/streams/free_events.h"
#include "interpose/serve/streams/free_marks.h"
#include "interpose/serve/streams/shared_frees.h"
#include "interpose/serve/streams/stream_clocks.h"
#include "interpose/serve/streams/unused_events.h"

namespace stalloc::serve {

// Every free gets a sequence number. ordered(S, T) is the number up to which stream S is ordered after T's frees (a
// vector clock, stream_clocks.h). complete_up_to(T) is the number up to which T's frees are known to be complete. Both
// grow by the functions of this class, and when the program itself uses its events or synchronizes (event_order.h).
//
//     stream T   --- work --- free #7 --- event --- more work --->
//                                            \_ wait: ordered_[S][T] = 7
//     stream S   ------------------------------ allocation of T's bytes --- work --->
//
// An event is recorded at the free itself in five cases: several streams use memory, the bytes may serve large
// requests, and T is watched; the plan says that another stream will use the bytes; T is a thread's own default stream,
// which no other thread can name; T was created as a blocking stream; an event was missed. Every other free makes no
// driver call. The event is recorded without the heap's lock, because T's queue may be full: the call then waits until
// the device takes work from it, as CUDA's own free does, and other threads must be able to go on meanwhile. So the
// caller prepares an event under the lock, records it, and hands it over for the number of the free:
//
//     lock    event = prepare_event(T)
//             record(event)
//     lock    HandOver(order, event): assign_free_number(T), mark_freed(ranges, T, number)
//
// Waits are made without the lock as well, since the queue of the stream that waits may be full, too. So `order` only
// notes them. When the bytes have been taken, the caller makes them, and only then is the stream known to be ordered:
//
//     lock    order(ranges, S), take the bytes, waits = take_waits()
//     make(waits)
//     lock    note_made(waits)
//
// If a wait fails, the bytes are freed again, and `mark_unordered` says that each stream must be waited for.
//
// CUDA's own free on a blocking stream is work of that stream, which follows the work of the legacy stream. The event
// stands for it: a program that waits for T, or finds T idle, may rely on work of the legacy stream being complete that
// it gave before the free.
//
// A stream is watched until none of its events has been wanted for many frees: an event costs the host a microsecond,
// as much as all else that a free does, and where the program orders its streams itself, hardly any is ever wanted. Of
// a stream that is not watched, one of many frees has an event, which tells which frees are complete. When an event is
// missed, the bytes are not used by another stream this time, and the stream is watched again, for twice as many frees.
//
// After a free without an event of its own, another stream may use the bytes once the free is known to be complete, or
// ordered: by the event of T's next free, which is then recorded in any case, or by what the program itself waits for.
// T is not asked whether it is idle, and no event is recorded on it at other moments, nor created: while a thread waits
// for room in T's queue, all of these calls wait, and T may depend on what the calling thread does next
// (docs/decisions/17-full-queues.md). Events are created ahead (`missing_events`).
//
// Only when the device has no more memory is a late event recorded on a busy stream, and may a stream wait for it
// (`allow_late_events`). It also follows work that T was given after the free, and that work may depend on S: by a host
// function, by a kernel that polls memory, or by another process. If the driver refuses a call, the bytes stay
// unordered and must not be served.
//
// The legacy stream is special in a program with blocking streams, which synchronize with it: an event on the legacy
// stream waits for the work of those streams, and their later work waits for the event. CUDA's own free on that stream
// creates the same order, but at the moment of the free only. So a late event is recorded there only while all these
// streams are idle; in addition, one free of many has an event of its own.
//
// Not thread-safe: the heap's lock protects it, except for `clocks` and where it says so. Only the constructor and
// `add_events` throw. No function waits for work on the host, but `record`, `make` and `find_idle_or_record` may wait
// for room in the queue of their stream.
class StreamOrder {
 public:
  // More than a step of most trainings frees, so that an event that each step wants is there.
  static constexpr std::uint64_t kWatchedFrees = 65536;

  // `context` is the context of all streams; `driver` and `events` must outlive this object. `physical_bytes` and
  // `page_bytes` are as for FreeMarks. When a second stream uses memory, `events` starts tracking; it may be null. A
  // stream is watched for `watched_frees` frees of all streams at first. Throws std::bad_alloc.
  StreamOrder(Driver& driver, CUcontext context, std::uint64_t physical_bytes, std::uint64_t page_bytes,
              EventOrder* events = nullptr, std::uint64_t watched_frees = kWatchedFrees);
  ~StreamOrder();
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;

  // Forgets every stream, and records no event from now on. `destroy_events`: destroys the events; the context must
  // exist and be current. The end of a context destroys its events.
  void close(bool destroy_events) noexcept;

  [[nodiscard]] CUcontext context() const noexcept { return context_; }

  // Returns the ordinal of a stream that uses memory; it is assigned at the first call. Returns kNoStream if the stream
  // belongs to another context, or if too many other streams have pending work. `context_is_current`: the calling
  // thread's context is known to be `context`, so the driver need not be asked for the context of a default stream.
  StreamOrdinal ordinal(StreamKey key, bool context_is_current = false) noexcept;
  // The same for a stream that may not use memory of this heap itself.
  StreamOrdinal ordinal_of_user(StreamKey key, bool context_is_current = false) noexcept;
  // The same if the stream has an ordinal already; otherwise kNoStream. Calls no driver function, so that the stream
  // may be about to be destroyed.
  [[nodiscard]] StreamOrdinal known_ordinal(StreamKey key) const noexcept { return find(key); }
  // The same if this is the stream that was looked up last; otherwise kNoStream. Changes nothing. Pre, for a default
  // stream: the calling thread's context is `context`.
  [[nodiscard]] StreamOrdinal latest_ordinal(StreamKey key) const noexcept {
    return key == latest_key_ ? latest_ : kNoStream;
  }

  // Orders the work that `stream` is given from now on after every free of these bytes, once the noted waits are made.
  // False: that was not possible, and the bytes may still be in use.
  [[nodiscard]] bool order(PhysicalRanges ranges, StreamOrdinal stream) noexcept;
  // True if every free of these bytes is complete, so that any stream may use them at once (cudaMalloc). Queries the
  // device.
  [[nodiscard]] bool is_complete(PhysicalRanges ranges) noexcept;
  // True if every free up to the number is complete. Queries the device.
  [[nodiscard]] bool is_complete(std::uint64_t number) noexcept;
  // True if every free up to the number is known to be complete, without a query.
  [[nodiscard]] bool is_known_complete(std::uint64_t number) const noexcept;
  // Like `order`. If `stream` is kNoStream, which stands for all streams at once, like `is_complete`.
  [[nodiscard]] bool make_ready(PhysicalRanges ranges, StreamOrdinal stream) noexcept {
    return stream == kNoStream ? is_complete(ranges) : order(ranges, stream);
  }
  // True if the stream is known to be ordered after every free of the bytes already. Calls no driver function.
  [[nodiscard]] bool is_ordered(PhysicalRanges ranges, StreamOrdinal stream) const noexcept;
  // Like `order`, but returns false, without noting any wait, if the stream would have to wait for a stream after which
  // the program has ordered it before. The program will probably do so again for these frees, and the bytes can then be
  // used a little later without a wait by stalloc.
  [[nodiscard]] bool order_without_avoidable_wait(PhysicalRanges ranges, StreamOrdinal stream) noexcept;

  // The waits that `order` has noted since `take_waits` was called last, for one stream. Their events are not used
  // again before `note_made`.
  class Waits {
   public:
    [[nodiscard]] bool all_are_made() const noexcept { return made_ == waits_.size(); }

   private:
    friend class StreamOrder;
    struct Wait {
      StreamOrdinal owner = kNoStream;
      CUevent event = nullptr;
      std::uint64_t covers = 0;
    };
    StreamOrdinal waiter_ = kNoStream;
    StreamKey key_;            // of the waiter
    std::vector<Wait> waits_;  // at most one for each owner
    std::size_t made_ = 0;     // the first ones
  };
  [[nodiscard]] bool has_waits() const noexcept { return !noted_.waits_.empty(); }
  Waits take_waits() noexcept;
  // Forgets the waits: their bytes were not taken.
  void forget_waits() noexcept;
  // Makes the waits, until one fails. Call without the heap's lock, on the thread of the request.
  void make(Waits& waits) noexcept;
  // The waits were made, as far as they say.
  void note_made(Waits waits) noexcept;
  // The bytes were freed on a stream after a wait for their earlier frees had failed. They can be used again by a
  // stream that is ordered after all frees of all streams so far.
  void mark_unordered(PhysicalRanges ranges) noexcept { marks_.mark(ranges, kEveryStreamMark, latest_number(), false); }

  // True if another stream had freed some of the bytes for which one of the functions above returned true last.
  [[nodiscard]] bool made_foreign_ready() const noexcept { return made_foreign_ready_; }

  // Whether late events, which follow later work of the freeing stream, are recorded on busy streams, and streams may
  // wait for them.
  void allow_late_events(bool may) noexcept { late_events_allowed_ = may; }

  // Streams will take bytes that others have freed, as a plan says. So which bytes a free was of is known from now on,
  // also while only one stream uses memory.
  void expect_waits() noexcept { marks_.keep_parts(); }

  // The program has at least that many streams, with the default one; a smaller number than before changes nothing.
  // Needs no lock.
  void expect_streams(std::size_t streams) noexcept;
  // How many events are to be created, so that there are enough for some time. They are for the context, without
  // timing; `add_events` takes them. Throws std::bad_alloc; the caller then still owns them.
  [[nodiscard]] std::size_t missing_events() const noexcept;
  // Whether few events are unused, so that frees may soon find none.
  [[nodiscard]] bool has_few_events() const noexcept;
  void add_events(std::span<const CUevent> events);
  // Returns an event that the caller then owns; null: there is none.
  CUevent take_unused_event() noexcept { return unused_.remove(); }
  // Takes an event of the context that nothing uses any more.
  void give_back_event(CUevent event) noexcept;

  // The program creates blocking streams, which synchronize with the legacy stream. Call before they are given work.
  void blocking_streams_exist() noexcept;

  // An event for the next free on a stream.
  struct EventAtFree {
    StreamOrdinal stream = kNoStream;
    StreamKey key;
    CUevent event = nullptr;  // null: there is none
    std::uint64_t after = 0;  // the stream's latest free when it was prepared
    bool blocking = false;    // the stream is a blocking one
    bool recorded = false;
    bool complete = false;  // the stream was idle
  };
  // Whether a free on `stream` by the calling thread is to have an event. `for_others`: other streams may wait for it.
  [[nodiscard]] bool wants_event(StreamOrdinal stream, bool for_others) const noexcept;
  // False: it wants none in any case. Fast.
  [[nodiscard]] bool may_want_event(StreamOrdinal stream) const noexcept {
    const Stream& freeing = streams_[stream];
    return freeing.blocking || freeing.wants_event || has_several_users() || is_barrier(freeing);
  }
  EventAtFree prepare_event(StreamOrdinal stream) noexcept;
  // Records the event, which is there. Call without the heap's lock.
  void record(EventAtFree& event) noexcept;
  // While it exists, the event belongs to the next free on its stream.
  class HandOver {
   public:
    HandOver(StreamOrder& order, const EventAtFree& event) noexcept : order_(order) { order_.hand_over(event); }
    ~HandOver() { order_.take_back(); }
    HandOver(const HandOver&) = delete;
    HandOver& operator=(const HandOver&) = delete;

   private:
    StreamOrder& order_;
  };

  // Returns the number of a new free on `stream`. Call when the program frees, and call `mark_freed` with the ranges
  // before the next free gets its number.
  //
  // A stream that was destroyed, or is another thread's own, can be given no event any more. It is named by a free that
  // needs none (cuMemFree of a pool's memory), since the program's work on the bytes is complete: what was given before
  // the bytes were allocated is all that may still use them. Such a free gets no number of its own.
  std::uint64_t assign_free_number(StreamOrdinal stream) noexcept;
  // Marks bytes as freed on `stream`, by the free with that number.
  void mark_freed(PhysicalRanges ranges, StreamOrdinal stream, std::uint64_t number) noexcept;
  // The latest free was of these bytes, on `stream`, and work of another stream, `user`, may still use them
  // (shared_frees.h).
  void mark_also_used(PhysicalRanges ranges, StreamOrdinal stream, StreamOrdinal user) noexcept;
  // Whether that was ever called, and whether it was for some of these bytes: then a stream that has them need not be
  // ordered after all work on them, since their owner gets them at once.
  [[nodiscard]] bool has_users() const noexcept { return shared_.has_pairs(); }
  [[nodiscard]] bool may_have_users(PhysicalRanges ranges) const noexcept {
    return has_users() && marks_.may_exceed(ranges, kMaxStreams);
  }
  // The bytes were freed, and the work that they were allocated for is complete. Work of the users of earlier frees
  // (shared_frees.h) may still use them.
  void mark_complete(PhysicalRanges ranges) noexcept;
  // The bytes are new: no work on the device uses them.
  void clear_marks(PhysicalRanges ranges) noexcept { marks_.clear(ranges); }

  // To wait for the whole context: take a number, wait without the heap's lock (free_fence.h), and mark every free up
  // to the number as complete.
  std::uint64_t take_number() noexcept { return clocks_.take_number(); }
  // The latest number that was taken.
  [[nodiscard]] std::uint64_t latest_number() const noexcept { return clocks_.latest_number(); }
  void mark_all_complete(std::uint64_t number) noexcept { clocks_.mark_all_complete(number); }

  // Finds out which frees are complete: queries each pending event once. Frees that complete a little later are known
  // at the next call. The next free of each stream with frees that no event covers gets an event.
  void poll() noexcept;
  // The same. If late events are allowed, also records them for all frees that no event covers, and queries
  // repeatedly, with a limited number of rounds.
  void poll_thoroughly() noexcept;

  // Call before the program destroys a stream. CUDA may give its handle to another stream afterwards. If an event is
  // returned, call `find_idle_or_record` without the heap's lock, and then `stream_destroyed`.
  std::optional<EventAtFree> prepare_destruction(CUstream stream) noexcept;
  void find_idle_or_record(EventAtFree& event) noexcept;
  void stream_destroyed(const EventAtFree& event) noexcept;

  // The order as far as it is known. Needs no lock.
  [[nodiscard]] StreamClocks& clocks() noexcept { return clocks_; }
  // Returns the clock of a stream, which is assigned at the first call; null: there are too many streams. Valid until
  // the stream is destroyed. Pre: the stream belongs to `context`.
  StreamClock* clock(StreamKey key) noexcept;

  // True if more than one stream has used memory.
  [[nodiscard]] bool has_several_users() const noexcept { return users_ > 1; }

  // `waits` counts the waits that were made, and `spared_waits` those that were not needed because the program had
  // created the order itself.
  [[nodiscard]] std::uint64_t waits() const noexcept { return waits_; }
  [[nodiscard]] std::uint64_t spared_waits() const noexcept { return spared_waits_; }

 private:
  struct Stream {
    StreamKey key;
    bool alive = false;               // the stream has not been destroyed
    bool blocking = false;            // created without CU_STREAM_NON_BLOCKING, or a thread's own default stream
    bool uses_memory = false;         // false: known for its events only
    bool wants_event = false;         // its next free has an event: one was missed
    std::uint64_t used_at = 0;        // latest free number when it was last looked up, to find the least recently used
    std::uint64_t watched_frees = 0;  // for how many frees it is watched after one of its events was wanted
    std::uint64_t watched_until = 0;  // the number of the last free that has an event in any case
    std::uint32_t taken_waits = 0;    // results of `take_waits` that were not passed to `note_made` yet
    FreeEvents events;
  };

  // The stream's frees up to `number` must be complete. `exact`: the free with this number is the last of the bytes.
  struct Free {
    std::uint64_t number = 0;
    bool exact = false;
  };
  // Calls `claim(owner, free)` for the streams that `stream` must be ordered after before it uses the bytes. If
  // `stream` is kNoStream, these are all streams that may still use them.
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
  [[nodiscard]] bool is_watched(StreamOrdinal stream) const noexcept {
    return latest_number() <= streams_[stream].watched_until;
  }
  void forget(StreamOrdinal stream) noexcept;
  void watch(StreamOrdinal stream) noexcept {
    streams_[stream].watched_until = latest_number() + streams_[stream].watched_frees;
  }

  [[nodiscard]] bool is_reachable(const Stream& stream) const noexcept;
  void note_free(StreamOrdinal stream, std::uint64_t number) noexcept;
  void hand_over(const EventAtFree& event) noexcept;
  void take_back() noexcept {
    if (at_free_.event != nullptr) unused_.put(std::exchange(at_free_, {}).event);
  }
  CUevent take_event(StreamOrdinal stream) noexcept;
  void add(StreamOrdinal ordinal, const FreeEvent& event, bool recorded) noexcept;
  void record_free_events() noexcept;
  [[nodiscard]] const FreeEvent* event_to_wait_for(StreamOrdinal owner, Free free) const noexcept;
  bool note_wait(StreamOrdinal waiter, StreamOrdinal owner, Free free) noexcept;
  bool query_complete(StreamOrdinal owner, std::uint64_t number) noexcept;
  bool order_slowly(PhysicalRanges ranges, StreamOrdinal stream) noexcept;
  const FreeEvent* record_late_event(StreamOrdinal ordinal) noexcept;
  [[nodiscard]] bool is_barrier(const Stream& stream) const noexcept {
    return has_blocking_streams_ && stream.key.handle == CU_STREAM_LEGACY;
  }
  bool query_event(StreamOrdinal owner, const FreeEvent& event) noexcept;
  [[nodiscard]] std::uint64_t last_free(StreamOrdinal stream) const noexcept { return clocks_.latest_free(stream); }
  [[nodiscard]] std::uint64_t ordered(StreamOrdinal waiter, StreamOrdinal owner) const noexcept;
  // Whether the waiter is ordered after the owner's frees up to the number, or these are complete.
  [[nodiscard]] bool is_behind(StreamOrdinal waiter, StreamOrdinal owner, std::uint64_t number) const noexcept {
    return ordered(waiter, owner) >= number || clocks_.complete_up_to(owner) >= number;
  }
  void set_ordered(StreamOrdinal waiter, StreamOrdinal owner, std::uint64_t number) noexcept;
  void count_spared_wait(StreamOrdinal waiter, StreamOrdinal owner, std::uint64_t number) noexcept;
  static std::uint64_t pair(StreamOrdinal waiter, StreamOrdinal owner) noexcept {
    return std::uint64_t{waiter} * (kMaxStreams + 1) + owner;
  }

  StreamKey latest_key_;              // the stream that was looked up last
  StreamOrdinal latest_ = kNoStream;  // its ordinal; kNoStream: the stream has been destroyed
  Driver& driver_;
  CUcontext context_;
  EventOrder* events_;
  FreeMarks marks_;
  SharedFrees shared_;
  std::unique_ptr<Stream[]> streams_;  // [1, stream_count_]
  UnusedEvents unused_;
  Waits noted_;
  EventAtFree at_free_;  // of the free that gets the next number on its stream
  StreamClocks clocks_;
  SparseArray<std::uint64_t> ordered_;  // by pair: `ordered`, where one of the two streams has no clock
  SparseArray<std::uint64_t> waited_;   // by pair: the value of `ordered` if the program had created no order itself
  SparseArray<bool> program_orders_;    // by pair: the program's own order has spared a wait
  StreamOrdinal stream_count_ = 0;
  std::atomic<std::size_t> expected_streams_{0};
  bool closed_ = false;
  bool has_blocking_streams_ = false;
  bool late_events_allowed_ = false;
  bool made_foreign_ready_ = false;
  const std::uint64_t watched_frees_;
  unsigned users_ = 0;  // number of streams that have ever used memory
  std::uint64_t waits_ = 0;
  std::uint64_t spared_waits_ = 0;
};

}  // namespace stalloc::serve
