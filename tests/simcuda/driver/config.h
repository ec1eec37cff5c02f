// SPDX-License-Identifier: Apache-2.0
// Settings of the simulated machine (../simcuda_control.h says what each means), and failure injection.
#pragma once

#include <atomic>
#include <cstdint>

#include "tests/simcuda/simcuda_control.h"

namespace simcuda {

inline constexpr std::uint64_t kPageBytes = 2ULL << 20;  // granularity of cuMemCreate
inline constexpr int kDriverVersion = 13000;
inline constexpr int kMaxDevices = 16;

struct Config {
  int devices = 1;
  std::uint64_t device_bytes = 150'109'880'320;
  std::uint64_t seed = 1;
  std::uint64_t slow_map_us = 0;
  bool strict_streams = false;
  bool context_events = true;
  std::atomic<std::uint64_t> delay_us{0};
  std::atomic<std::uint64_t> delay_every{1};
};

// The settings, read from the environment at the first call.
Config& config();

// Counts a call and returns whether it shall run out of memory.
bool shall_fail(SimcudaCall call);

// Waits as long as SIMCUDA_SLOW_MAP_US says.
void slow_map();

}  // namespace simcuda
