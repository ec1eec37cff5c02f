// SPDX-License-Identifier: Apache-2.0
// Random allocations and frees from several threads on several streams. Two runs can make the same requests and free
// them at other times, in another order and on other streams. Whatever a plan says, no tensor may be damaged.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tests/e2e/host.h"

namespace stalloc::e2e {

struct Stress {
  std::uint64_t seed = 1;       // decides what is requested
  std::uint64_t lives = 1;      // decides how tensors are used and freed
  std::size_t requests = 2000;  // of each thread
  std::size_t threads = 1;
  std::size_t streams = 3;  // shared by all threads
};

void run_stress(Host& host, const Stress& stress);

}  // namespace stalloc::e2e
