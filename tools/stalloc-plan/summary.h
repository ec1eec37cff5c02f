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
  double plan_seconds = 0;  // lifetimes and file reading not counted
  double check_seconds = 0;
  std::string written;  // path of the plan; empty: not written
};

std::string summary_text(const Summary& summary);
std::string summary_json(const Summary& summary);

// Live bytes as a share of physical ones; 1 where there are none.
double utilisation(std::uint64_t live, std::uint64_t physical);
// "17.82 GiB", "640 B"
std::string bytes_text(std::uint64_t bytes);

}  // namespace stalloc::tool
