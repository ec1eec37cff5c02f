// SPDX-License-Identifier: Apache-2.0
// Recorded runs for programs of this folder.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "plan/files/csv.h"
#include "plan/files/file_io.h"
#include "plan/files/trace_file.h"
#include "plan/lifetimes.h"
#include "plan/problem.h"

namespace stalloc::bench {

// Reads a trace, or a CSV of requests: a problem for each device. If the file cannot be read, prints why and ends the
// program.
inline std::vector<plan::Problem> read_problems(const std::string& path) {
  const auto give_up = [&](const std::string& error) {
    std::fprintf(stderr, "%s: %s\n", path.c_str(), error.c_str());
    std::exit(1);
  };
  auto bytes = plan::read_file(path);
  if (!bytes.ok()) give_up(bytes.error);
  if (!trace::is_trace(bytes.value)) {
    auto problem = plan::parse_csv({reinterpret_cast<const char*>(bytes.value.data()), bytes.value.size()});
    if (!problem.ok()) give_up(problem.error);
    return {std::move(problem.value)};
  }
  const auto trace = trace::read_trace(path);
  if (!trace.ok()) give_up(trace.error);
  return plan::find_lifetimes(trace.value).devices;
}

}  // namespace stalloc::bench
