// SPDX-License-Identifier: Apache-2.0
// Events: a moment on a stream's timeline.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>

#include "tests/simcuda/driver/capture.h"
#include "tests/simcuda/driver/timeline.h"

namespace simcuda {

struct Event {
  using Clock = std::chrono::steady_clock;

  std::mutex mutex;
  Context* context = nullptr;
  std::uint64_t context_id = 0;
  bool timed = true;
  bool recorded = false;
  Point point;                       // of the last record
  std::shared_ptr<Capture> capture;  // when the last record was captured, and
  Frontier frontier;                 // what the stream was ordered behind then
  std::shared_ptr<std::atomic<Clock::rep>> stamp;
};

}  // namespace simcuda
