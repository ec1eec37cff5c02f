// SPDX-License-Identifier: Apache-2.0
// What is known of the order between the streams of one context: vector clocks (Lamport 1978; Fidge 1988, Mattern
// 1989).
//
// Each free of memory gets a number, and each stream that is known has an ordinal. The clock of a stream S says for
// each stream T: all work that S is given from now on starts behind T's frees up to this number. Each number in it is a
// fact about S of its own, and stays true for as long as S lives: no other number makes it wrong, and time does not.
// That is why clocks are read and written here without a lock, one number after the other. Of two threads that raise
// the same number at once, one may undo what the other wrote: the lower number is true as well, and says less.
//
// A number must never pass from one stream to another. So the ordinals that have a clock name a stream until that
// stream is destroyed (StreamOrder::reclaim leaves them alone), and the next stream begins with an empty clock. The
// numbers of frees never repeat, so that what others know of the old stream's frees says nothing of the new one's.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "interpose/base/stream_key.h"
#include "interpose/serve/streams/free_marks.h"

namespace stalloc::serve {

class StreamClocks;

// One stream's clock. Thread-safe, lock-free.
class StreamClock {
 public:
  // How many streams of a context have one: those with the ordinals [1, kStreams].
  static constexpr std::size_t kStreams = 28;
  using Number = std::atomic<std::uint64_t>;

  // Whether it is that stream's. False once the stream is destroyed.
  [[nodiscard]] bool is_for(const StreamKey& key) const noexcept {
    return handle_.load(std::memory_order_acquire) == key.handle &&
           thread_.load(std::memory_order_relaxed) == key.thread;
  }
  [[nodiscard]] StreamClocks& all() const noexcept { return *all_; }
  [[nodiscard]] StreamOrdinal ordinal() const noexcept { return ordinal_; }

  // The number up to which the stream is behind the frees of the stream with that ordinal, in [1, kStreams].
  [[nodiscard]] std::uint64_t ordered_after(std::size_t owner) const noexcept {
    return ordered_after_[owner - 1].load(std::memory_order_acquire);
  }
  // Pre: the wait that makes it so has been given to the stream.
  void raise(std::size_t owner, std::uint64_t number) noexcept {
    Number& known = ordered_after_[owner - 1];
    if (known.load(std::memory_order_relaxed) < number) known.store(number, std::memory_order_release);
  }
  // The same, for the stream itself: the number of its latest free.
  [[nodiscard]] inline std::uint64_t latest_free() const noexcept;

  // The program found all work of the stream to be over that had been given to it when `known` was taken.
  using Snapshot = std::array<std::uint64_t, kStreams>;
  void snapshot(Snapshot* snapshot) const noexcept;

 private:
  friend class StreamClocks;

  std::atomic<CUstream> handle_{nullptr};  // null: names no stream
  std::atomic<std::uint64_t> thread_{0};
  // Its work waits for no other stream's but by events: not created so, a stream and the legacy one wait for each
  // other.
  std::atomic<bool> non_blocking_{false};
  StreamClocks* all_ = nullptr;
  StreamOrdinal ordinal_ = kNoStream;
  std::array<Number, kStreams> ordered_after_{};
};

// Of one heap. What changes names is covered by the heap's lock; everything else is thread-safe and lock-free.
class StreamClocks {
 public:
  explicit StreamClocks(CUcontext context) noexcept;
  StreamClocks(const StreamClocks&) = delete;
  StreamClocks& operator=(const StreamClocks&) = delete;

  // Never 0, and never given to the clocks of another heap.
  [[nodiscard]] std::uint64_t id() const noexcept { return id_; }
  [[nodiscard]] CUcontext context() const noexcept { return context_; }

  // Null for ordinals that have no clock.
  [[nodiscard]] StreamClock* of(StreamOrdinal stream) noexcept {
    return stream == kNoStream || stream > StreamClock::kStreams ? nullptr : &clocks_[stream - 1U];
  }
  // How many ordinals with a clock were given out: no clock says anything about higher ones.
  [[nodiscard]] std::size_t count() const noexcept { return count_.load(std::memory_order_acquire); }

  // The ordinal names another stream, which is ordered behind nothing yet; no stream.
  void assign(StreamOrdinal stream, StreamKey key, bool non_blocking) noexcept;
  void forget(StreamOrdinal stream) noexcept;

  // Frees. A number is given to each, greater than all before.
  std::uint64_t take_number() noexcept {
    const std::uint64_t number = sequence_.load(std::memory_order_relaxed) + 1;
    sequence_.store(number, std::memory_order_release);
    return number;
  }
  [[nodiscard]] std::uint64_t latest_number() const noexcept { return sequence_.load(std::memory_order_acquire); }
  void set_latest_free(StreamOrdinal stream, std::uint64_t number) noexcept {
    latest_free_[stream].store(number, std::memory_order_release);
  }
  // The number of the stream's latest free; 0: it never freed anything.
  [[nodiscard]] std::uint64_t latest_free(StreamOrdinal stream) const noexcept {
    return latest_free_[stream].load(std::memory_order_acquire);
  }

  // The number up to which the stream's frees, and all work before them, are known to be over.
  [[nodiscard]] std::uint64_t complete_up_to(StreamOrdinal stream) const noexcept {
    return complete_[stream].load(std::memory_order_acquire);
  }
  void mark_complete(StreamOrdinal stream, std::uint64_t number) noexcept {
    StreamClock::Number& known = complete_[stream];
    if (known.load(std::memory_order_relaxed) < number) known.store(number, std::memory_order_release);
  }
  // What StreamClock::snapshot took is over.
  void mark_complete(const StreamClock::Snapshot& known) noexcept {
    for (std::size_t i = 0; i < known.size(); ++i) {
      if (known[i] != 0) mark_complete(static_cast<StreamOrdinal>(i + 1), known[i]);
    }
  }
  // All work of the context is over that had been given to it when `number` was the latest.
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
