// SPDX-License-Identifier: Apache-2.0
// Plans the traces of several ranks: `stalloc-plan trace.*.fb -o plans/`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tools/stalloc-plan/planning.h"

namespace stalloc::tool {

// The result for one input. Figures are sums over its devices.
struct RankResult {
  static constexpr std::size_t kItself = static_cast<std::size_t>(-1);

  std::string input;
  std::string rank;               // as recorded, else the number in the file's name, else the file's name
  std::string recorded_rank;      // by the launcher's variables; empty: none
  bool recorded = false;          // the input is a trace
  std::string written;            // path of the plan; empty: not written
  std::string error;              // empty: planned
  std::size_t same_as = kItself;  // index of the input whose plan this one shares
  std::uint64_t requests = 0;
  std::uint64_t peak_live_bytes = 0;
  std::uint64_t physical_bytes = 0;  // of the plan
  std::uint64_t held_bytes = 0;      // of the plan, and beside it for requests that it leaves out (simulated)
  std::uint64_t native_bytes = 0;    // held by PyTorch's native allocator and by requests that bypass it (simulated)
  std::uint64_t stitched_views = 0;
  std::uint64_t handles = 0;
  double startup_ms = 0;  // estimated
};

struct RanksResult {
  std::vector<RankResult> ranks;  // in the order of the inputs
  double seconds = 0;             // reading, planning, checking and writing
};

// The name of the plan, for which `stalloc run --plan FOLDER` looks: plan.3.fb for rank 3. Without a recorded rank it
// is made of the input's: trace.3.fb -> plan.3.fb; other names get "plan." in front, and the extension fb.
std::string plan_name(const RankResult& rank);

// Plans every input, in parallel, into the folder `command.output` (made if needed; empty: a dry run). Ranks with the
// same requests share a plan, which is checked against each of them. An input that fails does not stop the others.
int plan_ranks(const PlanCommand& command);

// The table of all ranks for people, and the same as JSON (docs/formats.md).
std::string ranks_text(const RanksResult& result);
std::string ranks_json(const RanksResult& result);

}  // namespace stalloc::tool
