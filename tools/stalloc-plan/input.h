// SPDX-License-Identifier: Apache-2.0
// Reading the command's input: a trace, a CSV of requests, or a plan.
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
  trace::Trace trace;          // `events` is empty for a CSV
  plan::Lifetimes lifetimes;
};

using Input = std::variant<Source, plan::Plan>;

struct ReadOptions {
  bool accept_truncated = false;  // take the whole chunks of a trace that stops inside one
};

// Tells the formats apart by their first bytes. Errors name the path.
plan::Expected<Input> read_input(const std::string& path, const ReadOptions& options);

// The same for a file that must be a trace or a CSV.
plan::Expected<Source> read_source(const std::string& path, const ReadOptions& options);

// The first of the outputs that is a file and one of the inputs, perhaps by another name; empty: there is none.
std::string find_replaced(const std::vector<std::string>& outputs, const std::vector<std::string>& inputs);

}  // namespace stalloc::tool
