// SPDX-License-Identifier: Apache-2.0
#include "tests/simcuda/driver/config.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>

namespace simcuda {
namespace {

struct Failure {
  std::atomic<std::uint64_t> calls{0};
  std::atomic<std::uint64_t> first{0};  // 0: never
  std::atomic<bool> onward{false};
};

Failure failures[3];

std::uint64_t number(const char* name, std::uint64_t fallback) {
  const char* text = std::getenv(name);
  if (text == nullptr) return fallback;
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), value);
  return error == std::errc() ? value : fallback;
}

void read_failure(const char* name, SimcudaCall call) {
  failures[call].first = number(name, 0);
  const char* text = std::getenv(name);
  failures[call].onward = text != nullptr && std::string_view(text).ends_with('+');
}

void read(Config& to) {
  to.devices = static_cast<int>(std::clamp<std::uint64_t>(number("SIMCUDA_DEVICES", 1), 0, kMaxDevices));
  to.device_bytes = number("SIMCUDA_DEVICE_BYTES", to.device_bytes);
  to.seed = number("SIMCUDA_SEED", 1);
  to.slow_map_us = number("SIMCUDA_SLOW_MAP_US", 0);
  to.context_events = number("SIMCUDA_CONTEXT_EVENTS", 1) != 0;
  to.strict_streams = number("SIMCUDA_STRICT_STREAMS", 0) != 0;
  to.delay_us = number("SIMCUDA_DELAY_US", 0);
  to.delay_every = std::max<std::uint64_t>(number("SIMCUDA_DELAY_EVERY", 1), 1);
  read_failure("SIMCUDA_FAIL_CREATE", SIMCUDA_CREATE);
  read_failure("SIMCUDA_FAIL_MAP", SIMCUDA_MAP);
  read_failure("SIMCUDA_FAIL_ALLOC", SIMCUDA_ALLOC);
}

}  // namespace

Config& config() {
  static Config* const instance = [] {
    auto* fresh = new Config;  // never destroyed: streams may outlive main
    read(*fresh);
    return fresh;
  }();
  return *instance;
}

bool shall_fail(SimcudaCall call) {
  Failure& failure = failures[call];
  const std::uint64_t count = ++failure.calls;
  const std::uint64_t first = failure.first;
  return first != 0 && (count == first || (failure.onward && count > first));
}

void slow_map() {
  if (config().slow_map_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(config().slow_map_us));
}

}  // namespace simcuda

extern "C" {

__attribute__((visibility("default"))) void simcuda_fail(SimcudaCall call, uint64_t n, int onward) {
  using simcuda::failures;
  simcuda::config();  // reads the environment first, so that it cannot undo this later
  failures[call].onward = onward != 0;
  failures[call].first = n == 0 ? 0 : failures[call].calls + n;
}

__attribute__((visibility("default"))) void simcuda_set_delay(uint64_t microseconds, uint64_t every) {
  simcuda::config().delay_us = microseconds;
  simcuda::config().delay_every = every == 0 ? 1 : every;
}
}
