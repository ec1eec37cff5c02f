// SPDX-License-Identifier: Apache-2.0
// A lock between the program's stream captures and the library's own work on streams: no capture may begin after the
// library has checked that a stream is not being captured, and before it has given the stream work.
//
// An event that the library records on a stream under capture would become part of the program's graph, and a wait may
// make a stream join the capture. So the library checks whether a stream is being captured before it gives it work. The
// answer holds only until a capture begins in another thread, or a stream joins one by waiting for an event recorded in
// it. So the hooks of the functions that do this hold the gate exclusively (CaptureLock), and the library's own calls
// share it (WorkLock). The hooks of the functions that end a capture hold it exclusively, too, so that each end is
// counted once.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <shared_mutex>

namespace stalloc::serve {

// Thread-safe. A thread that holds the gate never waits for work on the device, for another lock of the library, or for
// the program.
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

  // While this object exists, no capture begins and no stream joins one. Shared.
  class WorkLock {
   public:
    explicit WorkLock(CaptureGate& gate) : lock_(gate.mutex_) {}

   private:
    std::shared_lock<std::shared_mutex> lock_;
  };

  // While this object exists, the library gives no stream any work. For calls that begin, join or end a capture.
  // Exclusive.
  class CaptureLock {
   public:
    explicit CaptureLock(CaptureGate& gate) : lock_(gate.mutex_) {}

   private:
    std::unique_lock<std::shared_mutex> lock_;
  };

 private:
  std::atomic<std::uint64_t> captures_{0};  // begun and not known to have ended
  std::atomic<std::uint64_t> begun_{0};
  std::atomic<bool> any_unobserved_{false};
  std::shared_mutex mutex_;
};

}  // namespace stalloc::serve
