// SPDX-License-Identifier: Apache-2.0
// The order that a program makes between its streams by its events.
//
//     stream T   --- work --- free #7 --- record(e) --- more work --->
//                                            \_ the program's wait: S is behind T's frees up to #7
//     stream S   ------------------------------ wait(e) --- allocation of T's bytes, without any wait of ours --->
//
// An event carries the clock that its stream had when it was recorded (stream_clocks.h). A stream that waits for the
// event is from then on behind all that the clock says, and a program that finds the event to be over knows that all of
// it is. Streams that free nothing pass on what they learnt, as the streams of a communication library do.
//
// Relying on an order that does not exist would overwrite live data. So an order counts only when the functions below
// saw everything that makes it. Why that is safe:
//
// 1. A record's clock is taken before CUDA is called. What is in it lies before the event on the stream: the frees
//    had been made and the waits given to the stream when the clock was taken. A free that another thread makes while
//    CUDA records is not in it.
// 2. A wait counts after CUDA has accepted it, and only if the event was not recorded, destroyed or made anew from
//    before the wait until after it. So CUDA waited for the very record whose clock is used. Each event has a number
//    that grows whenever one of these begins, and a clock belongs to one value of it. When one begins and the one
//    before is not known to be over, nobody knows which is the last: such an event is distrusted for good.
// 3. A record that fails leaves no clock. Neither does one that may have been captured, and no wait counts that may
//    have been: none counts where a capture was under way anywhere in the process at the beginning or at the end of
//    the call, or began in between (CaptureGate::quiet_epoch). An event that was recorded in a capture has no clock
//    until its next record.
// 4. An event that may be recorded unseen is distrusted for good: one that other processes share, one that a graph
//    records when it is launched, one that a kernel's launch records, one that came from another interface than
//    CUDA's. A record of a whole context is seen and leaves no clock.
// 5. A clock is of one context. A stream of another one learns nothing from it.
// 6. Events are found by their handles in a table of fixed size. Two whose handles fall on one entry share the
//    number: a record of one takes the other's clock away, and distrust of one is distrust of both. Nothing is ever
//    evicted that would have to be remembered. An event that gets a distrusted one's handle is distrusted, too.
// 7. Records are counted from the process's beginning, before there is anything to order: a record that is under way
//    when the first clock is taken is known of.
// 8. What a legacy or blocking stream is behind without any event, the work of the others, is not in its clock. But
//    it is behind that when an event comes: a record is work of the stream. The library gives a stream no work at a
//    free, so that a program that waits for a blocking stream itself, and not for an event on it, learns nothing of
//    what the stream freed (StreamClock::snapshot).
//
// A function that the host runs in a stream's order (cuLaunchHostFunc) is not watched: it can order work only by other
// calls, or by means that only the program sees.
//
// What cannot be excluded: that a program records an event by public functions, and the same event again by functions
// that are not public (tables of cuGetExportTable), before it waits for it. No library is known to do that. A
// function that records events, that is found by its name and that is none of those hooked ends the belief in all
// events (`looked_up`); one that is newer than this library and that the program is linked with would not be noticed.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

#include "interpose/serve/driver/capture_gate.h"
#include "interpose/serve/streams/stream_clocks.h"

namespace stalloc::serve {

// The events of a process. Thread-safe and lock-free; nothing but the constructor throws or allocates. Memory is taken
// as events are used, 4 MiB at most. The functions that call CUDA return what it returned.
class EventOrder {
 public:
  // Throws std::bad_alloc.
  EventOrder();
  ~EventOrder();
  EventOrder(const EventOrder&) = delete;
  EventOrder& operator=(const EventOrder&) = delete;

  // Around the program's record of `event`. `record` calls CUDA. `find` returns the clock of the stream (StreamClock*),
  // null: there is none; it is asked before CUDA is, and only if its answer is of use.
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
  // Around a record that leaves no clock.
  template <class Record>
  CUresult record_untracked(CUevent event, Record record) noexcept {
    Entry& entry = entry_of(event);
    const Update update = begin(entry);
    const CUresult result = record();
    end(entry, update, false);
    return result;
  }

  // Around the program's wait of a stream for `event`. `find` is asked for the stream's clock after CUDA was.
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

  // Around a call that succeeds only if `event` is over. `find(id)` returns the clocks with that id (StreamClocks*), or
  // null.
  template <class Find, class Ask>
  CUresult observe_completion(CUevent event, Find find, Ask ask) noexcept {
    const Entry& entry = entry_of(event);
    const std::uint64_t word = tracked_word(entry, event);
    const CUresult result = ask();
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

  // The event is about to be destroyed, or has just been made: it has no clock.
  void forget(CUevent event) noexcept {
    Entry& entry = entry_of(event);
    end(entry, begin(entry), false);
  }
  // It may be recorded unseen from now on.
  void distrust(CUevent event) noexcept { entry_of(event).word.fetch_or(kDistrusted, std::memory_order_acq_rel); }
  void distrust_all() noexcept { distrusted_.store(true, std::memory_order_release); }
  // The program looked up a function of the driver that is not hooked.
  void looked_up(std::string_view symbol) noexcept;

  // Two streams of a context use memory: from now on records leave clocks.
  void start_tracking() noexcept { tracking_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] bool is_tracking() const noexcept { return tracking_.load(std::memory_order_relaxed); }

 private:
  // Of a entry's word: the number of what happened to the event, shifted by one, and whether it is distrusted.
  static constexpr std::uint64_t kDistrusted = 1;
  static constexpr std::uint64_t kNext = 2;
  static constexpr unsigned kEntryBits = 14;

  using Number = std::atomic<std::uint64_t>;
  // Written only by who is alone between the beginning and the end of a update. Others believe what they read if the
  // word was the same before and after, and `ended` belongs to it.
  struct alignas(64) Entry {
    Number word;
    Number ended;  // the latest update that ended, as in a word, and in its lowest bit whether it left a clock
    std::atomic<CUevent> event;
    Number clocks_id;  // the clocks' id, and behind it in 8 bits how many numbers there are
    std::array<Number, StreamClock::kStreams> numbers;
  };
  static_assert(sizeof(Entry) == 256);

  struct Update {
    std::uint64_t word = 0;
    bool alone = false;
  };
  static Update begin(Entry& entry) noexcept {
    const std::uint64_t before = entry.word.fetch_add(kNext, std::memory_order_acq_rel);
    const bool over = (entry.ended.load(std::memory_order_acquire) | 1) == (before | 1);
    if (!over) entry.word.fetch_or(kDistrusted, std::memory_order_acq_rel);
    return {(before + kNext) & ~kDistrusted, over && (before & kDistrusted) == 0};
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

  // Release: whoever reads one of these values knows of the record that is under way.
  static void write(Entry& entry, CUevent event, const StreamClock& clock) noexcept {
    const std::size_t count = clock.all().count();
    entry.event.store(event, std::memory_order_release);
    entry.clocks_id.store(clock.all().id() << 8 | count, std::memory_order_release);
    for (std::size_t i = 0; i < count; ++i)
      entry.numbers[i].store(clock.ordered_after(i + 1), std::memory_order_release);
    entry.numbers[clock.ordinal() - 1U].store(clock.latest_free(), std::memory_order_release);
  }

  // The word, if the event has a clock now; else 0.
  [[nodiscard]] std::uint64_t tracked_word(const Entry& entry, CUevent event) const noexcept {
    const std::uint64_t word = entry.word.load(std::memory_order_acquire);
    const bool has_clock = (word & kDistrusted) == 0 && entry.ended.load(std::memory_order_acquire) == (word | 1) &&
                           entry.event.load(std::memory_order_acquire) == event;
    return has_clock && !distrusted_.load(std::memory_order_acquire) ? word : 0;
  }

  // False when it is not the clock that `tracked_word` saw.
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
