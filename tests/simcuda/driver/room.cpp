// SPDX-License-Identifier: Apache-2.0
#include "tests/simcuda/driver/room.h"

#include <atomic>

#include "tests/simcuda/simcuda_control.h"

namespace simcuda {
namespace {

std::atomic<std::uint64_t> waiting_in_all_contexts{0};

}  // namespace

RoomWaits::Waiting::Waiting(RoomWaits& all) : all_(all), number_(all.begin()) {}

RoomWaits::Waiting::~Waiting() { all_.end(number_); }

void RoomWaits::wait() {
  std::unique_lock lock(mutex_);
  const std::uint64_t last = begun_;
  ended_.wait(lock, [&] { return waiting_.empty() || *waiting_.begin() > last; });
}

std::uint64_t RoomWaits::begin() {
  const std::scoped_lock lock(mutex_);
  waiting_.insert(++begun_);
  ++waiting_in_all_contexts;
  return begun_;
}

void RoomWaits::end(std::uint64_t number) {
  const std::scoped_lock lock(mutex_);
  waiting_.erase(number);
  --waiting_in_all_contexts;
  ended_.notify_all();
}

}  // namespace simcuda

extern "C" {

__attribute__((visibility("default"))) uint64_t simcuda_waiting_for_room(void) {
  return simcuda::waiting_in_all_contexts;
}
}
