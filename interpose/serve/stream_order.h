// Order between streams: invariant 2, bytes freed on one stream are used on another only behind an event that the
// driver orders, or when the work before the free is known to be complete.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <memory>

#include "interpose/serve/driver.h"
#include "interpose/serve/free_marks.h"
#include "interpose/serve/stream_key.h"

namespace stalloc::serve {

// Every free gets a sequence number. ordered_[S][T] is the number up to which stream S is ordered behind T's frees (a
// vector clock, after Lamport and Mattern), complete_[T] the number up to which T's frees are known to be complete.
//
//     stream T   --- work --- free #7 ---(event, recorded when somebody needs it)--- more work --->
//                                            \_ wait: ordered_[S][T] = 7
//     stream S   ------------------------------ allocation of T's bytes --- work --->
//
// A free costs no driver call; the event is recorded on T when S wants the bytes (S then waits for somewhat more than
// it must), or at the free when the plan knows that another stream will want them, or when T is a thread's own default
// stream, which no other thread can name. Whatever the driver refuses leaves the bytes unordered, and the caller must
// not serve them. Not thread-safe: the heap's lock covers it.
class StreamOrder {
 public:
  // `context` is the one all streams belong to. Throws std::bad_alloc.
  StreamOrder(Driver& driver, CUcontext context, std::uint64_t physical_bytes, std::uint64_t page_bytes);
  ~StreamOrder();
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;

  // Forgets every stream. `destroy_events`: the context lives and is current; its end destroys its events itself.
  void close(bool destroy_events) noexcept;

  // The stream's ordinal, given on first sight. kNoStream when it belongs to another context, or when too many streams
  // have work pending to tell them apart. `context_is_current`: the calling thread's context is known to be ours, so
  // that a default stream need not be asked for its own.
  StreamOrdinal ordinal(StreamKey key, bool context_is_current = false) noexcept;
  // The same if this was the stream looked up last, else kNoStream; changes nothing. Pre, for a default stream: the
  // calling thread's context is ours.
  [[nodiscard]] StreamOrdinal latest(StreamKey key) const noexcept { return key == latest_key_ ? latest_ : kNoStream; }

  // Orders the use of free bytes on `stream` behind every free of them. False: refused, the bytes may still be in use.
  [[nodiscard]] bool order(PhysicalRanges ranges, StreamOrdinal stream) noexcept;
  // For bytes that any stream may use at once (cudaMalloc): true only when every free of them is complete.
  [[nodiscard]] bool is_complete(PhysicalRanges ranges) noexcept;
  // True only when every free up to the number is complete.
  [[nodiscard]] bool is_complete(std::uint64_t number) noexcept;
  // The one or the other: kNoStream stands for any stream at once.
  [[nodiscard]] bool make_ready(PhysicalRanges ranges, StreamOrdinal stream) noexcept {
    return stream == kNoStream ? is_complete(ranges) : order(ranges, stream);
  }

  // Another stream than this one freed some of them last.
  [[nodiscard]] bool is_foreign(PhysicalRanges ranges, StreamOrdinal stream) const noexcept {
    return !marks_.only(ranges, stream);
  }

  // The bytes were freed on `stream`. `event_now`: another stream will want them.
  void freed(PhysicalRanges ranges, StreamOrdinal stream, bool event_now) noexcept;
  // The bytes were freed and the device is done with them.
  void cleared(PhysicalRanges ranges) noexcept { marks_.cleared(ranges); }

  // Waiting for the whole context takes three steps, the middle one without the heap's lock: take a number, wait
  // (free_fence.h), say that every free up to the number is complete.
  std::uint64_t take_number() noexcept { return ++sequence_; }
  // The number of the latest free, if none was taken since.
  [[nodiscard]] std::uint64_t latest_number() const noexcept { return sequence_; }
  void synchronized(std::uint64_t number) noexcept;

  // Records an event behind the frees of each stream that has none there yet: once the program has synchronised with
  // the stream, asking says that they are complete.
  void mark_frees() noexcept;
  // Finds out which frees are complete, asking the device a limited number of times. It never waits for work.
  void settle() noexcept;

  // Pre: the stream is still alive. Its handle may name another stream afterwards.
  void stream_destroyed(CUstream stream) noexcept;

  [[nodiscard]] std::uint64_t waits() const noexcept { return waits_; }

 private:
  struct Event {
    CUevent event = nullptr;
    std::uint64_t covers = 0;  // the stream's frees up to this number; 0: not recorded
  };
  struct Stream {
    StreamKey key;
    bool alive = false;           // names a stream of the program
    std::uint64_t last_free = 0;  // number of its latest free
    std::uint64_t used_at = 0;    // number when it was last looked up, for choosing the idlest
    std::array<Event, 8> events;  // a ring: the least recent is recorded anew
  };

  StreamOrdinal find(StreamKey key) const noexcept;
  StreamOrdinal admit(StreamKey key) noexcept;
  StreamOrdinal reclaim() noexcept;
  bool is_idle(StreamOrdinal stream) noexcept;

  bool wait_for(StreamOrdinal waiter, StreamOrdinal owner, std::uint64_t number) noexcept;
  bool completed(StreamOrdinal owner, std::uint64_t number) noexcept;
  bool order_slowly(PhysicalRanges ranges, StreamOrdinal stream) noexcept;
  Event* covering(Stream& stream, std::uint64_t number) noexcept;
  Event* record(Stream& stream) noexcept;
  std::uint64_t& ordered(StreamOrdinal waiter, StreamOrdinal owner) noexcept {
    return ordered_[std::uint64_t{waiter} * (kMaxStreams + 1) + owner];
  }

  StreamKey latest_key_;              // looked up last,
  StreamOrdinal latest_ = kNoStream;  // and its ordinal; kNoStream: the stream is gone
  Driver& driver_;
  CUcontext context_;
  FreeMarks marks_;
  std::unique_ptr<Stream[]> streams_;  // [1, stream_count_]
  LazyTable<std::uint64_t> ordered_;
  std::array<std::uint64_t, kMaxStreams + 1> complete_{};
  StreamOrdinal stream_count_ = 0;
  std::uint64_t sequence_ = 0;
  std::uint64_t waits_ = 0;
};

}  // namespace stalloc::serve
