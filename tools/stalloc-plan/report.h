// SPDX-License-Identifier: Apache-2.0
// `stalloc-plan report`: prints everything that `stalloc report` shows of a run, as JSON (docs/formats.md).
#pragma once

#include <string>
#include <vector>

#include "plan/simulate/native_peak.h"
#include "tools/stalloc-plan/curves.h"
#include "tools/stalloc-plan/input.h"
#include "tools/stalloc-plan/simulated_allocators.h"

namespace stalloc::tool {

struct ReportCommand {
  std::string input;
  std::string plan;  // empty: one is made
  ReadOptions read;
};

// Returns the exit code; errors are one line on stderr.
int run(const ReportCommand& command);

// One device's part of the report.
struct DeviceReport {
  const plan::Problem* problem = nullptr;
  Comparison comparison;
  Curves curves;
  plan::NativePeak native;
  std::vector<std::size_t> slots;   // of each request, or plan::kNoSlot
  std::vector<std::uint64_t> time;  // of each request, microseconds since the process began; empty for a CSV
};

// Returns the report as JSON. `plan_source` is the name of the plan's file; empty: the plan was made for the report.
std::string report_json(const Source& source, const std::string& plan_source, const std::vector<DeviceReport>& devices);

}  // namespace stalloc::tool
