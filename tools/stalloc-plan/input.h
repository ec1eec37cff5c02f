// SPDX-License-Identifier: Apache-2.0
// Reads the command's inputs: traces, CSVs of requests, and plans.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "plan/expected.h"
#include "plan/files/trace_file.h"
#include "plan/lifetimes.h"
#include "plan/plan.h"

namespace stalloc::tool {

// Requests to plan, and where they came from.
struct Source {
  std::string name;            // file name without its folders
  std::uint64_t checksum = 0;  // of the file's bytes
  bool recorded = false;       // from a trace; else from a CSV
  trace::Trace trace;          // empty for a CSV
  plan::Lifetimes lifetimes;
};

using Input = std::variant<Source, plan::Plan>;

struct ReadOptions {
  bool accept_truncated = false;  // read the whole chunks before the damage of a trace
};

// Reads a file of any of the three formats, which its first bytes tell apart. Errors name the path. Thread-safe.
plan::Expected<Input> read_input(const std::string& path, const ReadOptions& options);

// The same for a file that must be a trace or a CSV of requests.
plan::Expected<Source> read_source(const std::string& path, const ReadOptions& options);

// Returns the first of the outputs that is the same file as an input, perhaps under another name; empty if there is
// none.
std::string find_replaced(const std::vector<std::string>& outputs, const std::vector<std::string>& inputs);

}  // namespace stalloc::tool
