// SPDX-License-Identifier: Apache-2.0
// Makes a checked plan from requests, as `stalloc-plan TRACE` does for each of its inputs.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "plan/expected.h"
#include "plan/plan.h"
#include "plan/planner.h"
#include "tools/stalloc-plan/input.h"
#include "tools/stalloc-plan/progress.h"
#include "tools/stalloc-plan/summary.h"

namespace stalloc::tool {

struct PlanCommand {
  std::vector<std::string> inputs;  // paths; not empty
  std::string output;               // path of a file or, for several inputs, of a folder; empty: nothing is written
  bool json = false;
  plan::PlanOptions options;
  ReadOptions read;
};

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start);

// A plan, and the figures for its summary.
struct Planned {
  plan::Plan plan;
  Summary summary;
};

// Plans every device of `source`, which must outlive the summary, and checks the result. `progress` may be null.
// Thread-safe.
plan::Expected<Planned> plan_source(const Source& source, const plan::PlanOptions& options, Progress* progress);

// Names the first fault of `plan` for `source`; empty if the plan is sound. Only a sound plan may be written.
// Thread-safe.
std::string find_fault(const Source& source, const plan::Plan& plan);

// Reads the plan at `path`. Error: the file is no plan, or the plan is not sound for `source`, whose path is
// `source_path`.
plan::Expected<plan::Plan> read_sound_plan(const std::string& path, const Source& source,
                                           const std::string& source_path, const ReadOptions& options);

}  // namespace stalloc::tool
