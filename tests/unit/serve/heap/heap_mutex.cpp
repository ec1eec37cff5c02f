// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/heap/heap_mutex.h"

#include <mutex>
#include <thread>
#include <vector>

#include "catch.h"

using stalloc::serve::BackoffMutex;

namespace {

// Returns the sum to which several threads count. Each step is a read and a write, which only the lock makes atomic.
template <class Mutex>
int count_together(int threads, int steps) {
  Mutex mutex;
  int count = 0;
  std::vector<std::thread> running;
  for (int i = 0; i < threads; ++i) {
    running.emplace_back([&] {
      for (int step = 0; step < steps; ++step) {
        const std::lock_guard lock(mutex);
        const int seen = count;
        if (step % 64 == 0) std::this_thread::yield();
        count = seen + 1;
      }
    });
  }
  for (std::thread& thread : running) thread.join();
  return count;
}

}  // namespace

TEST_CASE("one thread at a time holds the heap's lock", "[serve][mutex][threads]") {
  REQUIRE(count_together<stalloc::serve::HeapMutex>(4, 20'000) == 80'000);
}

TEST_CASE("threads that sleep for the lock are woken, each of them", "[serve][mutex][threads]") {
  REQUIRE(count_together<BackoffMutex<0>>(8, 5'000) == 40'000);  // sleeps without spinning
}

TEST_CASE("a lock that is held cannot be taken", "[serve][mutex]") {
  BackoffMutex<0> mutex;
  REQUIRE(mutex.try_lock());
  REQUIRE_FALSE(mutex.try_lock());
  mutex.unlock();
  REQUIRE(mutex.try_lock());
  mutex.unlock();
}
