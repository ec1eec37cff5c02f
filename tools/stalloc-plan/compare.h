// SPDX-License-Identifier: Apache-2.0
// `stalloc-plan compare`: prints what each allocator would hold for the same requests, by simulation.
#pragma once

#include <cstdint>
#include <string>

#include "tools/stalloc-plan/input.h"

namespace stalloc::tool {

struct CompareCommand {
  std::string input;
  bool json = false;
  std::uint64_t granularity = 0;  // of stalloc's pages, bytes; 0: the recorded device's, else the default
  ReadOptions read;
};

// Returns the exit code; errors are one line on stderr.
int run(const CompareCommand& command);

}  // namespace stalloc::tool
