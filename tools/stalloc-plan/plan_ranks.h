// SPDX-License-Identifier: Apache-2.0
// Plans the traces of several ranks: `stalloc-plan trace.*.fb -o plans/`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/stalloc-plan/planning.h"

namespace stalloc::tool {

// The result for one input. Figures are sums over its devices.
struct RankResult {
  static constexpr std::size_t kItself = static_cast<std::size_t>(-1);

  std::string input;
  std::string rank;                // as recorded, else the number in the file's name, else the file's name
  std::string recorded_rank;       // by the launcher's variables; empty: none
  bool recorded = false;           // the input is a trace
  std::optional<bool> closed;      // it is no trace that lacks its end; nothing: it was not read
  std::vector<std::string> notes;  // remarks on the trace (notes_on)
  std::string written;             // path of the plan; empty: not written
  std::string error;               // empty: planned
  std::size_t same_as = kItself;   // index of the input whose plan this one shares
  std::uint64_t requests = 0;
  std::uint64_t peak_live_bytes = 0;
  std::uint64_t physical_bytes = 0;  // of the plan
  std::uint64_t held_bytes = 0;      // the plan's memory, and what is held for requests that it leaves out (simulated)
  std::uint64_t native_bytes = 0;    // what PyTorch's native allocator and requests that bypass it hold (simulated)
  std::uint64_t stitched_views = 0;
  std::uint64_t handles = 0;
  double startup_ms = 0;  // estimated
};

// The results for all inputs of one command.
struct RanksResult {
  std::vector<RankResult> ranks;  // in the order of the inputs
  double seconds = 0;             // reading, planning, checking and writing
};

// Returns the name of the plan, as `stalloc run --plan FOLDER` expects it: plan.3.fb for rank 3. Without a recorded
// rank, the name follows from the input's: trace.3.fb becomes plan.3.fb, and other.csv becomes plan.other.fb.
std::string plan_name(const RankResult& rank);

// Returns the rank of the recorded process, as its launcher's variables said; empty: it had none.
std::string recorded_rank(const Source& source);

// Plans every input, in parallel, into the folder `command.output` (made if needed; empty: nothing is written). Ranks
// with the same requests share a plan, which is checked against each of them. An input that fails does not stop the
// others. Prints the summary, and returns the exit code. `only`: what is in the only input, if it was read already.
int plan_ranks(const PlanCommand& command, std::optional<Source> only = std::nullopt);

// The table of all ranks for people, and the same as JSON (docs/formats.md).
std::string ranks_text(const RanksResult& result);
std::string ranks_json(const RanksResult& result);

}  // namespace stalloc::tool
