// SPDX-License-Identifier: Apache-2.0
// Keeps the program's stream captures and the library's own work on streams apart: no capture may begin between the
// library's question whether a stream is captured and the work that it then gives the stream.
//
// An event that the library records on a stream under capture becomes part of the program's graph, and a wait may pull
// a stream into it. So the library asks whether a stream is being captured before it gives the stream work. The answer
// holds only as long as no capture begins, and no stream joins one (by waiting for an event recorded in it), in another
// thread: so the hooks of the functions that do this hold the gate exclusively, and the library's own calls share it.
// The hooks of the functions that end a capture hold it exclusively, too, so that each end is counted once.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <shared_mutex>

namespace stalloc::serve {

// Thread-safe. A holder of the gate never waits for work on the device, for another lock of the library, or for the
// program.
class CaptureGate {
 public:
  // False only when no stream is under capture: asking the driver for each request would cost as much as serving it,
  // and most programs never capture anything. Relaxed order is enough: the program's own synchronisation tells a thread
  // that uses a captured stream of the capture.
  [[nodiscard]] bool may_be_capturing() const noexcept { return captures_.load(std::memory_order_relaxed) != 0; }

  // Call before a capture begins, and `ended` once when it did not begin or is over.
  void capture_began() noexcept {
    captures_.fetch_add(1, std::memory_order_relaxed);
    begun_.fetch_add(1, std::memory_order_release);  // release: whoever sees this count also sees the other
  }
  void capture_ended() noexcept {
    if (!any_unobserved_.load(std::memory_order_relaxed)) captures_.fetch_sub(1, std::memory_order_release);
  }
  // Captures may begin unseen from now on. Then nobody knows which end is of a capture that was counted, so no end
  // counts any more, and the driver is asked at each request.
  void may_begin_unobserved() noexcept {
    any_unobserved_.store(true, std::memory_order_relaxed);
    capture_began();
  }

  // 0: a capture may be under way. Two equal answers other than 0: none was in between, nor has one begun.
  [[nodiscard]] std::uint64_t quiet_epoch() const noexcept {
    const std::uint64_t begun = begun_.load(std::memory_order_acquire);
    return captures_.load(std::memory_order_acquire) == 0 ? begun + 1 : 0;
  }

  // While it lives, no capture begins and no stream joins one.
  class WorkLock {
   public:
    explicit WorkLock(CaptureGate& gate) : lock_(gate.mutex_) {}

   private:
    std::shared_lock<std::shared_mutex> lock_;
  };

  // While it lives, the library gives no stream any work. Hold it around what begins a capture, joins or ends one.
  class CaptureLock {
   public:
    explicit CaptureLock(CaptureGate& gate) : lock_(gate.mutex_) {}

   private:
    std::unique_lock<std::shared_mutex> lock_;
  };

 private:
  std::atomic<std::uint64_t> captures_{0};  // begun and not known to be over
  std::atomic<std::uint64_t> begun_{0};
  std::atomic<bool> any_unobserved_{false};
  std::shared_mutex mutex_;
};

}  // namespace stalloc::serve
