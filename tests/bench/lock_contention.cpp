// SPDX-License-Identifier: Apache-2.0
// What several locks cost when many threads want them all the time, in ns for a pair and thread. A pair takes the lock
// twice, as an allocation and its free do, and touches memory under it. The program prints a table and is not a test.
//
//     lock_contention [pairs per thread]
#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "interpose/serve/heap/heap_mutex.h"

namespace {

using stalloc::serve::BackoffMutex;
using Clock = std::chrono::steady_clock;

// The former lock of the heap: it tries for about as long as a request takes, then leaves the waiting to the system.
class BriefSpinMutex {
 public:
  void lock() {
    for (int i = 0; i < 64; ++i) {
      if (mutex_.try_lock()) return;
      stalloc::serve::pause_processor();
    }
    mutex_.lock();
  }
  void unlock() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

// Takes about as many cache lines, and as long, as serving a request from free bytes.
struct Shared {
  static constexpr std::size_t kLines = 24;
  struct alignas(64) Line {
    std::uint64_t value = 0;
  };
  std::array<Line, kLines> lines;

  void work() {
    std::uint64_t carried = lines[kLines - 1].value;
    for (Line& line : lines) carried = line.value = line.value * 6364136223846793005U + carried;
  }
};

struct Result {
  double nanoseconds;  // for a pair and thread
  double longest_us;   // the longest pair of any thread: shows threads that are passed over
};

template <class Mutex>
Result measure(std::size_t threads, std::size_t pairs) {
  Mutex mutex;
  Shared shared;
  std::vector<double> longest(threads);
  std::vector<std::thread> running;
  const auto start = Clock::now();
  for (std::size_t number = 0; number < threads; ++number) {
    running.emplace_back([&, number] {
      auto before = Clock::now();
      for (std::size_t i = 0; i < pairs; ++i) {
        for (int call = 0; call < 2; ++call) {
          const std::lock_guard lock(mutex);
          shared.work();
        }
        const auto now = Clock::now();
        longest[number] = std::max(longest[number], std::chrono::duration<double, std::micro>(now - before).count());
        before = now;
      }
    });
  }
  for (std::thread& thread : running) thread.join();
  const std::chrono::duration<double, std::nano> spent = Clock::now() - start;
  return {spent.count() / static_cast<double>(pairs), *std::max_element(longest.begin(), longest.end())};
}

template <class Mutex>
void row(const char* name, std::size_t pairs) {
  std::printf("%-28s", name);
  for (const std::size_t threads : {1, 2, 4, 16}) {
    const Result result = measure<Mutex>(threads, pairs);
    std::printf(" %9.0f (%8.0f)", result.nanoseconds, result.longest_us);
  }
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t pairs = 300'000;
  if (argc > 1) std::from_chars(argv[1], argv[1] + std::strlen(argv[1]), pairs);
  std::printf("%-28s %20s %20s %20s %20s\n", "ns a pair (longest, us)", "1 thread", "2", "4", "16");
  row<std::mutex>("std::mutex", pairs);
  row<BriefSpinMutex>("64 tries, std::mutex", pairs);
  row<BackoffMutex<4>>("backoff, 16 pauses", pairs);
  row<BackoffMutex<6>>("backoff, 64 pauses", pairs);
  row<BackoffMutex<8>>("backoff, 256 pauses", pairs);
  row<BackoffMutex<10>>("backoff, 1024 pauses", pairs);
  row<BackoffMutex<12>>("backoff, 4096 pauses", pairs);
}
