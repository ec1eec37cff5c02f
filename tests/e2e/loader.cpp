// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/loader.h"

#include <algorithm>

namespace stalloc::e2e {
namespace {

constexpr std::size_t kTicks = 6;  // the first ticks of a step, in which calls may be made

}  // namespace

Loader::Loader(Host& host, std::uint64_t seed) : host_(host), random_(seed) {
  must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  thread_ = std::thread([this] { run(); });
}

Loader::~Loader() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  turned_.notify_all();
  thread_.join();
}

void Loader::begin_step(cudaStream_t stream) {
  for (std::size_t& tick : ticks_) tick = random_() % kTicks;
  std::sort(ticks_.begin(), ticks_.end());
  tick_ = next_call_ = 0;
  if (batches_.empty()) return;
  host_.use(batches_.front(), stream);
  host_.free_on(batches_.front(), stream);
  batches_.pop_front();
}

void Loader::tick() {
  for (; next_call_ < kCalls && ticks_[next_call_] <= tick_; ++next_call_) {
    std::unique_lock lock(mutex_);
    its_turn_ = true;
    turned_.notify_all();
    turned_.wait(lock, [this] { return !its_turn_; });
  }
  ++tick_;
}

void Loader::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    turned_.wait(lock, [this] { return its_turn_ || stop_; });
    if (stop_) return;
    make_call(next_call_);
    its_turn_ = false;
    turned_.notify_all();
  }
}

void Loader::make_call(std::size_t call) {
  switch (call) {
    case 0:
      staged_ = host_.allocate(5 * kMiB, stream_);
      break;
    case 1:
      batches_.push_back(host_.allocate(3 * kMiB + 512, stream_));
      break;
    case 2:
      host_.free(host_.allocate(700'000, stream_));
      break;
    default:
      host_.free(staged_);
  }
}

}  // namespace stalloc::e2e
