// SPDX-License-Identifier: Apache-2.0
// The commands that plan, `show` and `check`. Each `run` prints its result and returns the exit code; an error is one
// line on stderr.
#pragma once

#include <string>

#include "tools/stalloc-plan/input.h"
#include "tools/stalloc-plan/planning.h"

namespace stalloc::tool {

struct ShowCommand {
  std::string input;  // path of a trace, a plan or a CSV of requests
  bool json = false;
  bool events = false;  // print the events of a trace, as JSON
  ReadOptions read;
};

struct CheckCommand {
  std::string source;  // path of the trace or the CSV of requests
  std::string plan;    // path of the plan
  ReadOptions read;
};

// Plans one input, or several into a folder (plan_ranks.h).
int run(const PlanCommand& command);
int run(const ShowCommand& command);
int run(const CheckCommand& command);

}  // namespace stalloc::tool
