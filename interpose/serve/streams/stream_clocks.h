// SPDX-License-Identifier: Apache-2.0
// The order between the streams of one context, as far as it is known: vector clocks (Lamport 1978; Fidge 1988; Mattern
// 1989).
//
// Each free of memory gets a number, and each known stream has an ordinal. The clock of a stream S has a number for
// each stream T: all work that S is given from now on is ordered after T's frees up to that number. Each number in a
// clock is true by itself and stays true as long as S exists, whatever the other numbers are. So clocks are read and
// written without a lock, one number at a time. If two threads raise the same number at once, the lower value may
// remain; it is true as well, and only less precise.
//
// A number must never pass from one stream to another. So an ordinal with a clock belongs to one stream until that
// stream is destroyed (StreamOrder::reclaim does not use it), and the next stream begins with an empty clock. The
// numbers of frees never repeat, so what other clocks say about the old stream's frees says nothing about the new
// stream's.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "interpose/base/stream_key.h"
#include "interpose/serve/streams/stream_ordinal.h"

namespace stalloc::serve {

class StreamClocks;

// The clock of one stream. Thread-safe and lock-free; nothing throws.
class StreamClock {
 public:
  // How many streams of a context have a clock: those with the ordinals [1, kStreams].
  static constexpr std::size_t kStreams = 28;
  using Number = std::atomic<std::uint64_t>;

  // True if this is the clock of that stream. False once the stream is destroyed.
  [[nodiscard]] bool is_for(const StreamKey& key) const noexcept {
    return handle_.load(std::memory_order_acquire) == key.handle &&
           thread_.load(std::memory_order_relaxed) == key.thread;
  }
  [[nodiscard]] StreamClocks& all() const noexcept { return *all_; }
  [[nodiscard]] StreamOrdinal ordinal() const noexcept { return ordinal_; }

  // The number up to which the stream is ordered after the frees of the stream with that ordinal, in [1, kStreams].
  [[nodiscard]] std::uint64_t ordered_after(std::size_t owner) const noexcept {
    return ordered_after_[owner - 1].load(std::memory_order_acquire);
  }
  // Raises that number. Pre: the stream has been given the wait that creates this order.
  void raise(std::size_t owner, std::uint64_t number) noexcept {
    Number& known = ordered_after_[owner - 1];
    if (known.load(std::memory_order_relaxed) < number) known.store(number, std::memory_order_release);
  }
  // The number of the stream's own latest free.
  [[nodiscard]] inline std::uint64_t latest_free() const noexcept;

  // `snapshot` writes the numbers up to which frees are complete once all work is complete that the stream has been
  // given so far. Take a snapshot, synchronize with the stream, and pass the snapshot to StreamClocks::mark_complete.
  using Snapshot = std::array<std::uint64_t, kStreams>;
  void snapshot(Snapshot* snapshot) const noexcept;

 private:
  friend class StreamClocks;

  std::atomic<CUstream> handle_{nullptr};  // null: the clock belongs to no stream
  std::atomic<std::uint64_t> thread_{0};
  // The stream was created with CU_STREAM_NON_BLOCKING, so its work waits for other streams only by events. Any other
  // stream and the legacy stream wait for each other.
  std::atomic<bool> non_blocking_{false};
  StreamClocks* all_ = nullptr;
  StreamOrdinal ordinal_ = kNoStream;
  std::array<Number, kStreams> ordered_after_{};
};

// The clocks of one heap, and the numbers of its frees. The heap's lock must be held for `assign`, `forget`,
// `take_number` and `set_latest_free`; everything else is thread-safe and lock-free. Nothing throws.
class StreamClocks {
 public:
  explicit StreamClocks(CUcontext context) noexcept;
  StreamClocks(const StreamClocks&) = delete;
  StreamClocks& operator=(const StreamClocks&) = delete;

  // Identifies these clocks in the process: never 0, and different for every heap.
  [[nodiscard]] std::uint64_t id() const noexcept { return id_; }
  [[nodiscard]] CUcontext context() const noexcept { return context_; }

  // The clock of an ordinal; null: it has none.
  [[nodiscard]] StreamClock* of(StreamOrdinal stream) noexcept {
    return stream == kNoStream || stream > StreamClock::kStreams ? nullptr : &clocks_[stream - 1U];
  }
  [[nodiscard]] const StreamClock* of(StreamOrdinal stream) const noexcept {
    return stream == kNoStream || stream > StreamClock::kStreams ? nullptr : &clocks_[stream - 1U];
  }
  // The largest ordinal with a clock that has been assigned: no clock says anything about larger ones.
  [[nodiscard]] std::size_t count() const noexcept { return count_.load(std::memory_order_acquire); }

  // `assign` gives the ordinal to another stream, which is not yet ordered after anything. `forget` leaves the ordinal
  // without a stream.
  void assign(StreamOrdinal stream, StreamKey key, bool non_blocking) noexcept;
  void forget(StreamOrdinal stream) noexcept;

  // Returns the next number; numbers grow by one and are common to all streams of the heap.
  std::uint64_t take_number() noexcept {
    const std::uint64_t number = sequence_.load(std::memory_order_relaxed) + 1;
    sequence_.store(number, std::memory_order_release);
    return number;
  }
  [[nodiscard]] std::uint64_t latest_number() const noexcept { return sequence_.load(std::memory_order_acquire); }
  void set_latest_free(StreamOrdinal stream, std::uint64_t number) noexcept {
    latest_free_[stream].store(number, std::memory_order_release);
  }
  // The number of the stream's latest free; 0: it has never freed anything.
  [[nodiscard]] std::uint64_t latest_free(StreamOrdinal stream) const noexcept {
    return latest_free_[stream].load(std::memory_order_acquire);
  }

  // The number up to which the stream's frees, and all its work before them, are known to be complete.
  [[nodiscard]] std::uint64_t complete_up_to(StreamOrdinal stream) const noexcept {
    return complete_[stream].load(std::memory_order_acquire);
  }
  void mark_complete(StreamOrdinal stream, std::uint64_t number) noexcept {
    StreamClock::Number& known = complete_[stream];
    if (known.load(std::memory_order_relaxed) < number) known.store(number, std::memory_order_release);
  }
  // Everything in a snapshot of StreamClock is complete.
  void mark_complete(const StreamClock::Snapshot& known) noexcept {
    for (std::size_t i = 0; i < known.size(); ++i) {
      if (known[i] != 0) mark_complete(static_cast<StreamOrdinal>(i + 1), known[i]);
    }
  }
  // All work is complete that had been given to the context when `number` was the latest number.
  void mark_all_complete(std::uint64_t number) noexcept {
    for (std::size_t stream = 1; stream <= kMaxStreams; ++stream)
      mark_complete(static_cast<StreamOrdinal>(stream), number);
  }

 private:
  const std::uint64_t id_;
  const CUcontext context_;
  std::atomic<std::size_t> count_{0};
  StreamClock::Number sequence_{0};
  std::array<StreamClock::Number, kMaxStreams + 1> latest_free_{};
  std::array<StreamClock::Number, kMaxStreams + 1> complete_{};
  std::array<StreamClock, StreamClock::kStreams> clocks_;
};

inline std::uint64_t StreamClock::latest_free() const noexcept { return all_->latest_free(ordinal_); }

}  // namespace stalloc::serve
