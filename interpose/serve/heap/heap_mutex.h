// SPDX-License-Identifier: Apache-2.0
// The mutex of a heap.
#pragma once

#include <atomic>
#include <cstdint>

#include "interpose/base/kept_errno.h"

namespace stalloc::serve {

// Pauses the processor for some tens of cycles.
inline void pause_processor() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // `yield` takes no time on most of these processors
#endif
}

// A mutex for short critical sections. Under contention, moving the protected data from core to core costs more than
// the work itself. So waiting threads back off: after every attempt, a thread pauses twice as long, up to
// 2^LongestPause times the processor's pause. Meanwhile one thread can take the mutex repeatedly, with all data in its
// own cache (test-and-test-and-set with exponential backoff: Anderson, "The Performance of Spin Lock Alternatives",
// 1990).
//
// A thread whose attempts have all failed sleeps (the three states of Drepper, "Futexes Are Tricky", 2004), so that no
// thread spins for long when the owner is not running. A thread that was woken spins with short pauses, so that it does
// not starve.
//
// Meets the Lockable requirements of the standard. It has a cache line of its own, since other threads read it while
// its owner writes the data beside it.
template <unsigned LongestPause>
class alignas(64) BackoffMutex {
 public:
  void lock() noexcept {
    if (!try_lock()) [[unlikely]] {
      lock_slowly();
    }
  }
  bool try_lock() noexcept {
    std::uint32_t expected = kFree;
    return state_.compare_exchange_strong(expected, kTaken, std::memory_order_acquire, std::memory_order_relaxed);
  }
  void unlock() noexcept {
    if (state_.exchange(kFree, std::memory_order_release) == kWaitedFor) [[unlikely]] {
      wake();
    }
  }

 private:
  static constexpr std::uint32_t kFree = 0;
  static constexpr std::uint32_t kTaken = 1;
  static constexpr std::uint32_t kWaitedFor = 2;  // taken, and a thread may be sleeping
  static constexpr unsigned kSpins = 3 * LongestPause;
  static constexpr unsigned kSpinsAfterSleep = 256;

  [[gnu::noinline]] void lock_slowly() noexcept {
    const KeptErrno kept;
    for (unsigned spin = 0; spin < kSpins; ++spin) {
      pause(1U << (spin < LongestPause ? spin : LongestPause));
      if (state_.load(std::memory_order_relaxed) == kFree && try_lock()) return;
    }
    while (state_.exchange(kWaitedFor, std::memory_order_acquire) != kFree) {
      state_.wait(kWaitedFor, std::memory_order_relaxed);
      for (unsigned spin = 0; spin < kSpinsAfterSleep && state_.load(std::memory_order_relaxed) != kFree; ++spin) {
        pause(1);
      }
    }
  }

  [[gnu::noinline]] void wake() noexcept { state_.notify_one(); }

  static void pause(unsigned times) noexcept {
    for (unsigned i = 0; i < times; ++i) pause_processor();
  }

  std::atomic<std::uint32_t> state_{kFree};
};

using HeapMutex = BackoffMutex<10>;

}  // namespace stalloc::serve
