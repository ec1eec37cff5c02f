// A random program: actors in threads of their own, then one after the other, round after round.
#pragma once

#include <cstdint>
#include <cstdio>

#include "tests/conformance/differential/actor.h"

namespace stalloc::conformance {

struct ProgramOptions {
  std::uint64_t seed = 1;
  bool resets = false;  // between the rounds, now and then
};

// Runs it and writes all logs. Whatever happens between the threads, the logs are the same in each run.
void run_program(World& world, const ProgramOptions& options, std::FILE* to);

}  // namespace stalloc::conformance
