// The lock of a heap.
#pragma once

#include <mutex>

namespace stalloc::serve {

// Spins for about as long as a request takes before it lets the system put the thread to sleep: what the lock covers is
// shorter than going to sleep and waking up. Meets the standard's Lockable requirements.
class HeapMutex {
 public:
  void lock() {
    for (int i = 0; i < kSpins; ++i) {
      if (mutex_.try_lock()) return;
      pause();
    }
    mutex_.lock();
  }
  bool try_lock() { return mutex_.try_lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  static constexpr int kSpins = 64;

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  std::mutex mutex_;
};

}  // namespace stalloc::serve
