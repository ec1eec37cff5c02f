// SPDX-License-Identifier: Apache-2.0
// Makes a schedule's calls on a driver, with the contents of every tensor checked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/replay/cuda_api.h"
#include "tests/replay/pattern.h"
#include "tests/replay/schedule.h"

namespace stalloc::replay {

// What the recorded streams other than the legacy stream become.
enum class Streams { NonBlocking, Blocking, Legacy };

struct Options {
  Verify verify = Verify::Stamps;
  Streams streams = Streams::NonBlocking;
  bool threads = false;  // each recorded thread's calls from a thread of its own, in the recorded order
  // After this call of the schedule, and after each `period` further ones, the program waits for all devices, since a
  // trace does not say where it did. No period: never.
  std::uint64_t first_wait = 0;
  std::uint64_t period = 0;
};

struct Result {
  std::uint64_t requests = 0;         // allocations made
  std::uint64_t skipped = 0;          // Schedule::skipped
  std::uint64_t verified = 0;         // tensors whose contents were checked
  std::uint64_t mismatches = 0;       // pieces of tensors with wrong contents
  std::uint64_t overlaps = 0;         // tensors that shared physical bytes with another; on simcuda only
  std::uint64_t peak_live_bytes = 0;  // as requested, all devices
  std::uint64_t physical_bytes = 0;   // most memory taken from the devices since the start
  double seconds = 0;
  std::string error;                    // the call that failed, one line; the replay ended there
  std::vector<std::string> complaints;  // the first mismatches and overlaps, one line each

  [[nodiscard]] bool ok() const { return error.empty() && mismatches == 0 && overlaps == 0; }
};

Result replay(const Api& api, const Schedule& schedule, const Options& options);

}  // namespace stalloc::replay
