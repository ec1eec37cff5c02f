// SPDX-License-Identifier: Apache-2.0
// Planning, `show` and `check`. Each returns the exit code; errors are one line on stderr.
#pragma once

#include <string>

#include "tools/stalloc-plan/input.h"
#include "tools/stalloc-plan/planning.h"

namespace stalloc::tool {

struct ShowCommand {
  std::string input;
  bool json = false;
  bool events = false;  // print the events of a trace, as JSON
  ReadOptions read;
};

struct CheckCommand {
  std::string source;
  std::string plan;
  ReadOptions read;
};

int run(const PlanCommand& command);
int run(const ShowCommand& command);
int run(const CheckCommand& command);

}  // namespace stalloc::tool
