// SPDX-License-Identifier: Apache-2.0
// The summary that the command prints after planning.
#pragma once

#include <string>
#include <vector>

#include "plan/planner.h"
#include "tools/stalloc-plan/input.h"

namespace stalloc::tool {

struct Summary {
  const Source* source = nullptr;
  std::vector<plan::PlannedDevice> devices;
  double plan_seconds = 0;  // without reading the file and finding lifetimes
  double check_seconds = 0;
  std::string written;  // path of the plan; empty: not written
};

// The summary for people, and the same as JSON (docs/formats.md).
std::string summary_text(const Summary& summary);
std::string summary_json(const Summary& summary);

// Returns remarks on a trace for the reader of its plan, one line each: how it ends, and which frees it lacks.
std::vector<std::string> notes_on(const Source& source);

// Returns what was left out of a damaged trace, as a line of remarks; empty: nothing was.
std::string left_out_text(const Source& source);

// Returns live bytes divided by physical bytes; 1 if there are no physical bytes.
double utilization(std::uint64_t live, std::uint64_t physical);
// Returns a size for people: "17.82 GiB", "640 B".
std::string bytes_text(std::uint64_t bytes);

}  // namespace stalloc::tool
