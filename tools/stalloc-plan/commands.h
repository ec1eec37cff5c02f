// The three things the command does. Each returns the exit code; errors are one line on stderr.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/planner.h"
#include "tools/stalloc-plan/input.h"

namespace stalloc::tool {

inline constexpr int kExitOk = 0;
inline constexpr int kExitBad = 1;    // bad input, or an unsound plan
inline constexpr int kExitUsage = 2;  // the command line makes no sense

struct PlanCommand {
  std::vector<std::string> inputs;  // not empty
  std::string output;               // a file, a folder for several inputs; empty: a dry run
  bool json = false;
  plan::PlanOptions options;
  ReadOptions read;
};

struct ShowCommand {
  std::string input;
  bool json = false;
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

// Writes to standard output. Returns the exit code.
int print(const std::string& text);

// Prints "stalloc-plan: <what>" on stderr, in one line whatever `what` holds.
int fail(const std::string& what, int exit_code = kExitBad);

}  // namespace stalloc::tool
