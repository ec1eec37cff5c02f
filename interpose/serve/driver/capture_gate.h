// SPDX-License-Identifier: Apache-2.0
// A lock between the program's stream captures and the library's own work on streams: no stream may become captured
// after the library has checked that it is not, and before it has given the stream work.
//
// An event that the library records on a stream under capture would become part of the program's graph, and a wait may
// make a stream join the capture. So the library checks whether a stream is being captured before it gives it work. The
// answer holds only until another thread begins a capture of that stream, or lets it join one by a wait for an event
// that was recorded in it. So the hooks of the functions that do this hold the gate for the stream (CaptureLock), and
// the library's own calls do, too (WorkLock): one kind excludes the other. While a blocking stream is captured, the
// legacy stream must be given no work either, so a CaptureLock of such a stream also excludes work on the legacy
// stream.
//
// Work may wait for room in the queue of its stream. Locks of other streams do not wait for it meanwhile: the device
// may take work from that queue only when another thread has gone on (docs/decisions/17-full-queues.md).
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <mutex>

#include "interpose/base/stream_key.h"

namespace stalloc::serve {

// Thread-safe. A thread that holds the gate waits for nothing but room in the queue of its stream, as the call of the
// program does that it is in, and for another capture that begins or ends at the same time (session/captures.h).
class CaptureGate {
 public:
  // False only if no stream is under capture. Querying the driver at each request would cost as much as serving it, and
  // most programs never capture anything. Relaxed order is enough: a thread that uses a captured stream has
  // synchronized with the thread that began the capture. Lock-free.
  [[nodiscard]] bool may_be_capturing() const noexcept { return captures_.load(std::memory_order_relaxed) != 0; }

  // Call `capture_began` before a capture begins, and `capture_ended` once when it has ended or did not begin.
  void capture_began() noexcept {
    captures_.fetch_add(1, std::memory_order_relaxed);
    begun_.fetch_add(1, std::memory_order_release);  // release: a thread that sees this count also sees the other
  }
  void capture_ended() noexcept { captures_.fetch_sub(1, std::memory_order_release); }
  // From now on, captures may begin by functions that are not hooked, so `may_be_capturing` is true for good, and the
  // driver is queried at each request. This counts as one capture that never ends.
  void may_begin_unobserved() noexcept {
    capture_began();
    // Counted before it is said, so that `only_unobserved` never takes an observed capture for this one.
    if (any_unobserved_.exchange(true, std::memory_order_release)) capture_ended();
  }
  [[nodiscard]] bool any_unobserved() const noexcept { return any_unobserved_.load(std::memory_order_acquire); }
  // True if captures may have begun unobserved, and no other is under way. Lock-free.
  [[nodiscard]] bool only_unobserved() const noexcept {
    return any_unobserved() && captures_.load(std::memory_order_acquire) == 1;
  }

  // Returns 0 if a capture may be under way. If two calls return the same number other than 0, no capture was under way
  // between them, and none has begun. Lock-free.
  [[nodiscard]] std::uint64_t quiet_epoch() const noexcept {
    const std::uint64_t begun = begun_.load(std::memory_order_acquire);
    return captures_.load(std::memory_order_acquire) == 0 ? begun + 1 : 0;
  }

  // For WorkLock: the streams are not known, as of an event behind all work of a context. No capture at all begins
  // meanwhile.
  static constexpr StreamKey kAnyStream{};

 private:
  // A lock that a thread holds, in a list. A lock that is waited for excludes nothing yet: the work that it waits for
  // may wait for room in a queue, and work of other streams must not wait for that.
  struct Entry {
    StreamKey stream;
    bool excludes_legacy = false;
    Entry* next = nullptr;
  };

 public:
  // While this object exists, no capture of `stream` begins, and the stream joins none.
  class WorkLock {
   public:
    WorkLock(CaptureGate& gate, const StreamKey& stream) noexcept : gate_(gate), work_{.stream = stream} {
      gate_.begin_work(work_);
    }
    ~WorkLock() { gate_.end(gate_.works_, work_); }
    WorkLock(const WorkLock&) = delete;
    WorkLock& operator=(const WorkLock&) = delete;

   private:
    CaptureGate& gate_;
    Entry work_;
  };

  // While this object exists, the library gives `stream` no work and, if the stream is `blocking`, none to the legacy
  // stream. For calls that begin or join a capture.
  class CaptureLock {
   public:
    CaptureLock(CaptureGate& gate, const StreamKey& stream, bool blocking) noexcept
        : gate_(gate), change_{.stream = stream, .excludes_legacy = blocking} {
      gate_.begin_change(change_);
    }
    ~CaptureLock() { gate_.end(gate_.changes_, change_); }
    CaptureLock(const CaptureLock&) = delete;
    CaptureLock& operator=(const CaptureLock&) = delete;

   private:
    CaptureGate& gate_;
    Entry change_;
  };

 private:
  void begin_work(Entry& work) noexcept;
  void begin_change(Entry& change) noexcept;
  void end(Entry*& list, Entry& entry) noexcept;
  void wait_for_an_end(std::unique_lock<std::mutex>& lock) noexcept;
  static bool excludes(const Entry& change, const Entry& work) noexcept;

  std::atomic<std::uint64_t> captures_{0};  // begun and not known to have ended
  std::atomic<std::uint64_t> begun_{0};
  std::atomic<bool> any_unobserved_{false};
  std::mutex mutex_;                    // protects the lists and `waiting_`; held briefly
  Entry* works_ = nullptr;              // that threads hold
  Entry* changes_ = nullptr;            // that threads hold
  std::uint32_t waiting_ = 0;           // threads that wait for a lock
  std::atomic<std::uint32_t> ends_{0};  // of locks, while threads were waiting
};

}  // namespace stalloc::serve
