// SPDX-License-Identifier: Apache-2.0
// A thread that prepares the next step's batch beside the training loop, on a stream of its own, now earlier, now later
// in the step.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <random>
#include <thread>

#include "tests/e2e/host.h"

namespace stalloc::e2e {

// The training loop calls `begin_step` and `tick`. In some ticks, which depend on `seed` and the step, it waits until
// the thread has made its next call, so two runs with the same seed make the same calls in the same order.
class Loader {
 public:
  Loader(Host& host, std::uint64_t seed);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Uses up the batch that was prepared in the step before, on `stream`.
  void begin_step(cudaStream_t stream);
  void tick();

 private:
  static constexpr std::size_t kCalls = 4;  // in a step

  void run();
  void make_call(std::size_t call);

  Host& host_;
  std::mt19937_64 random_;
  cudaStream_t stream_ = nullptr;
  std::array<std::size_t, kCalls> ticks_{};  // the ticks in which the calls are made
  std::size_t tick_ = 0;
  std::size_t next_call_ = kCalls;
  std::deque<Host::Id> batches_;
  Host::Id staged_ = 0;

  std::mutex mutex_;
  std::condition_variable turned_;
  bool its_turn_ = false;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace stalloc::e2e
