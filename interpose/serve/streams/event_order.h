// SPDX-License-Identifier: Apache-2.0
// The order that a program makes between its streams by its events.
//
//     stream T   --- work --- free #7 --- record(e) --- more work --->
//                                            \_ the program's wait: S is ordered after T's frees up to #7
//     stream S   ------------------------------ wait(e) --- allocation of T's bytes, without a wait by stalloc --->
//
// An event carries the clock that its stream had when the event was recorded (stream_clocks.h). A stream that waits for
// the event is from then on ordered after everything in that clock. When the program finds the event complete,
// everything in the clock is complete. A stream that frees nothing passes on what it was ordered after, as the streams
// of a communication library do.
//
// Relying on an order that does not exist would overwrite live data. So an order counts only if every operation that
// creates it was observed by the functions below. This is safe for these reasons:
//
// 1. The clock of a record is read before CUDA is called. Everything in it precedes the event on the stream: when the
//    clock was read, the frees had been made and the waits had been given to the stream. A free that another thread
//    makes while CUDA records the event is not in the clock.
// 2. A wait counts only after CUDA has accepted it, and only if the event was not recorded, destroyed or created again
//    between a moment before the wait and a moment after it. So CUDA waited for exactly the record whose clock is used.
//    Each event has a version number that grows whenever such an operation begins, and a clock belongs to one version.
//    If an operation begins while the previous one is still under way, it is unknown which of them is the last; such an
//    event is distrusted for good.
// 3. A record that fails leaves no clock. A record that may have been captured leaves no clock either, and a wait that
//    may have been captured does not count. An operation may have been captured if a capture was under way anywhere in
//    the process when the call began or ended, or began during the call (CaptureGate::quiet_epoch). An event that was
//    recorded in a capture has no clock until its next record.
// 4. An event that may be recorded without being observed is distrusted for good: an event shared with other processes,
//    one that a graph records when it is launched, one that a kernel launch records, and one from another interface
//    than CUDA's. A record of a whole context is observed and leaves no clock.
// 5. A clock belongs to one context. It tells nothing about a stream of another context.
// 6. Events are found by their handles in a hash table of fixed size. Two events whose handles have the same entry
//    share its version number: a record of one removes the other's clock, and distrust of one is distrust of both. So
//    nothing that must be remembered is ever evicted. An event that receives the handle of a distrusted event is
//    distrusted, too.
// 7. Versions are counted from the beginning of the process, before there is anything to order. So a record that is
//    under way when the first clock is read is known.
// 8. A legacy or blocking stream is ordered after the work of other streams without any event. That is not in its
//    clock. A record is work of the stream, so an event on it is ordered after that work. But the library gives a
//    stream no work at a free. So a program that waits for a blocking stream itself, and not for an event on it, learns
//    nothing about what the stream freed (StreamClock::snapshot).
//
// A host function in a stream (cuLaunchHostFunc) is not observed: it can order work only by other calls, or by means
// that only the program knows.
//
// One case cannot be excluded: a program records an event by public functions and then, before it waits for the event,
// records it again by functions that are not public (tables of cuGetExportTable). No library is known to do that. When
// the program finds a function that records events and is not hooked, all events are distrusted (`looked_up`). If
// the program is linked with such a function, which is newer than this library, that is not noticed.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

#include "interpose/serve/driver/capture_gate.h"
#include "interpose/serve/streams/stream_clocks.h"

namespace stalloc::serve {

// The events of a process. Thread-safe and lock-free. Only the constructor throws or allocates. Physical memory is used
// as events are used, at most 4 MiB. The functions that call CUDA return CUDA's result.
class EventOrder {
 public:
  // Throws std::bad_alloc.
  EventOrder();
  ~EventOrder();
  EventOrder(const EventOrder&) = delete;
  EventOrder& operator=(const EventOrder&) = delete;

  // Performs the program's record of `event`: `record()` calls CUDA. `find()` returns the clock of the stream
  // (StreamClock*), or null if it has none; it is called before `record`, and only if its result is needed.
  template <class Find, class Record>
  CUresult record(CUevent event, const CaptureGate& gate, Find find, Record record) noexcept {
    Entry& entry = entry_of(event);
    const Update update = begin(entry);
    const std::uint64_t quiet = gate.quiet_epoch();
    const StreamClock* clock = update.alone && quiet != 0 && is_tracking() ? find() : nullptr;
    if (clock != nullptr) write(entry, event, *clock);
    const CUresult result = record();
    end(entry, update, clock != nullptr && result == CUDA_SUCCESS && gate.quiet_epoch() == quiet);
    return result;
  }
  // Performs a record that leaves no clock.
  template <class Record>
  CUresult record_untracked(CUevent event, Record record) noexcept {
    Entry& entry = entry_of(event);
    const Update update = begin(entry);
    const CUresult result = record();
    end(entry, update, false);
    return result;
  }

  // Performs the program's wait of a stream for `event`: `wait()` calls CUDA. `find()` returns the stream's clock, or
  // null; it is called after `wait`.
  template <class Find, class Wait>
  CUresult wait(CUevent event, const CaptureGate& gate, Find find, Wait wait) noexcept {
    const Entry& entry = entry_of(event);
    const std::uint64_t word = tracked_word(entry, event);
    if (word == 0) return wait();
    const std::uint64_t quiet = gate.quiet_epoch();
    const CUresult result = wait();
    if (result != CUDA_SUCCESS || quiet == 0 || gate.quiet_epoch() != quiet) return result;
    Copy copy;
    StreamClock* clock = nullptr;
    if (read(entry, word, &copy) && (clock = find()) != nullptr && clock->all().id() == copy.clocks_id) {
      for (std::size_t i = 0; i < copy.count; ++i) {
        if (copy.numbers[i] != 0) clock->raise(i + 1, copy.numbers[i]);
      }
    }
    return result;
  }

  // Performs a call of CUDA, `query()`, that succeeds only if `event` is complete. `find(id)` returns the clocks with
  // that id (StreamClocks*), or null.
  template <class Find, class Query>
  CUresult observe_completion(CUevent event, Find find, Query query) noexcept {
    const Entry& entry = entry_of(event);
    const std::uint64_t word = tracked_word(entry, event);
    const CUresult result = query();
    if (word == 0 || result != CUDA_SUCCESS) return result;
    Copy copy;
    StreamClocks* clocks = nullptr;
    if (read(entry, word, &copy) && (clocks = find(copy.clocks_id)) != nullptr) {
      for (std::size_t i = 0; i < copy.count; ++i) {
        if (copy.numbers[i] != 0) clocks->mark_complete(static_cast<StreamOrdinal>(i + 1), copy.numbers[i]);
      }
    }
    return result;
  }

  // Call before the event is destroyed, and after it was created: it has no clock.
  void forget(CUevent event) noexcept {
    Entry& entry = entry_of(event);
    end(entry, begin(entry), false);
  }
  // Call when the event may be recorded without being observed from now on.
  void distrust(CUevent event) noexcept { entry_of(event).word.fetch_or(kDistrusted, std::memory_order_acq_rel); }
  // Whether a driver function of this name that is not hooked may record, create or destroy events, or put a record
  // into a graph.
  [[nodiscard]] static bool may_record_by(std::string_view symbol) noexcept;
  // Call when the program has looked up a function of the driver that is not hooked, and found it. If the function may
  // record events, all events are distrusted.
  void looked_up(std::string_view symbol) noexcept;

  // From now on, records leave clocks. Call when a second stream of a context uses memory.
  void start_tracking() noexcept { tracking_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] bool is_tracking() const noexcept { return tracking_.load(std::memory_order_relaxed); }

 private:
  // The word of an entry: in its lowest bit whether the event is distrusted, above that the version number, which
  // counts the operations on the event.
  static constexpr std::uint64_t kDistrusted = 1;
  static constexpr std::uint64_t kNext = 2;
  static constexpr unsigned kEntryBits = 14;

  using Number = std::atomic<std::uint64_t>;
  // A thread writes the rest of an entry only while its update is the only one that has begun and not ended. Readers
  // use what they read only if the word is the same before and after, and `ended` belongs to that word (a sequence
  // lock, as in Boehm, "Can Seqlocks Get Along With Programming Language Memory Models?", 2012).
  struct alignas(64) Entry {
    Number word;
    Number ended;  // the word of the latest update that has ended; the lowest bit says whether it left a clock
    std::atomic<CUevent> event;
    Number clocks_id;  // StreamClocks::id() << 8 | how many of `numbers` are valid
    std::array<Number, StreamClock::kStreams> numbers;
  };
  static_assert(sizeof(Entry) == 256);

  struct Update {
    std::uint64_t word = 0;
    bool alone = false;
  };
  static Update begin(Entry& entry) noexcept {
    const std::uint64_t before = entry.word.fetch_add(kNext, std::memory_order_acq_rel);
    const bool alone = (entry.ended.load(std::memory_order_acquire) | 1) == (before | 1);
    if (!alone) entry.word.fetch_or(kDistrusted, std::memory_order_acq_rel);
    return {(before + kNext) & ~kDistrusted, alone && (before & kDistrusted) == 0};
  }
  static void end(Entry& entry, Update update, bool leaves_clock) noexcept {
    entry.ended.store(update.word | static_cast<std::uint64_t>(leaves_clock), std::memory_order_release);
  }

  struct Copy {
    std::uint64_t clocks_id = 0;
    std::size_t count = 0;
    std::array<std::uint64_t, StreamClock::kStreams> numbers;
  };

  static constexpr std::size_t kTableBytes = sizeof(Entry) << kEntryBits;

  Entry& entry_of(CUevent event) const noexcept {
    // Fibonacci hashing (Knuth, The Art of Computer Programming, volume 3, 6.4).
    const auto key = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(event));
    return entries_[(key * 0x9e3779b97f4a7c15ULL) >> (64 - kEntryBits)];
  }

  // Uses release order: a thread that reads one of these values also sees the word of the update that is under way.
  static void write(Entry& entry, CUevent event, const StreamClock& clock) noexcept {
    const std::size_t count = clock.all().count();
    entry.event.store(event, std::memory_order_release);
    entry.clocks_id.store(clock.all().id() << 8 | count, std::memory_order_release);
    for (std::size_t i = 0; i < count; ++i)
      entry.numbers[i].store(clock.ordered_after(i + 1), std::memory_order_release);
    entry.numbers[clock.ordinal() - 1U].store(clock.latest_free(), std::memory_order_release);
  }

  // The entry's word if the event has a clock now; otherwise 0.
  [[nodiscard]] std::uint64_t tracked_word(const Entry& entry, CUevent event) const noexcept {
    const std::uint64_t word = entry.word.load(std::memory_order_acquire);
    const bool has_clock = (word & kDistrusted) == 0 && entry.ended.load(std::memory_order_acquire) == (word | 1) &&
                           entry.event.load(std::memory_order_acquire) == event;
    return has_clock && !distrusted_.load(std::memory_order_acquire) ? word : 0;
  }

  // Copies the clock. False if the entry has changed since `tracked_word` returned `word`.
  [[nodiscard]] static bool read(const Entry& entry, std::uint64_t word, Copy* copy) noexcept {
    const std::uint64_t packed = entry.clocks_id.load(std::memory_order_acquire);
    copy->clocks_id = packed >> 8;
    copy->count = packed & 0xff;
    for (std::size_t i = 0; i < copy->count; ++i) copy->numbers[i] = entry.numbers[i].load(std::memory_order_acquire);
    return entry.word.load(std::memory_order_acquire) == word;
  }

  std::atomic<bool> tracking_{false};
  std::atomic<bool> distrusted_{false};
  Entry* entries_;  // 2^kEntryBits, zero at first
};

}  // namespace stalloc::serve
