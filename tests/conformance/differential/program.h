// SPDX-License-Identifier: Apache-2.0
// A random program. In each round actors run in threads of their own, then one after the other.
#pragma once

#include <cstdint>
#include <cstdio>

#include "tests/conformance/differential/actor.h"

namespace stalloc::conformance {

struct ProgramOptions {
  std::uint64_t seed = 1;
  bool resets = false;  // reset the context now and then between rounds
};

// Runs the program and writes all logs. They are the same in each run, whatever the timing of the threads.
void run_program(World& world, const ProgramOptions& options, std::FILE* to);

}  // namespace stalloc::conformance
