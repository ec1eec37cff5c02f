// SPDX-License-Identifier: Apache-2.0
// Makes a plan from a problem: steady state, layout, handles, waits.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "plan/expected.h"
#include "plan/plan.h"
#include "plan/problem.h"
#include "plan/sequence/sequence.h"

namespace stalloc::plan {

inline constexpr std::uint64_t kDefaultGranularity = std::uint64_t{2} << 20;  // of every device up to Hopper
// Sizes of handles. kDefaultHandleBytes: cap on handles of small plans; kDefaultHandles: number of handles that larger
// plans aim for. Requests outside the plan (an evaluation, another number of microbatches) are stitched from the plan's
// free handles, so handles are small; but creating each takes time, so their number is limited.
inline constexpr std::uint64_t kDefaultHandleBytes = std::uint64_t{6} << 20;
inline constexpr std::uint64_t kDefaultHandles = 2048;

struct PlanOptions {
  std::uint64_t granularity = 0;  // bytes of a page (is_granularity); 0: the problem's, else the default
  std::uint64_t handle_cap = 0;   // largest handle, bytes, rounded down to the granularity; 0: by the defaults above
  StreamMode streams = StreamMode::Order;
  // Plans a recorded run as a whole, for a program that makes exactly the same requests again.
  bool whole_run = false;
  // For devices without VMM: one handle, no stitched views, however large that becomes (contiguous.h).
  bool contiguous = false;
  double contiguous_seconds = 1;                   // time for improving it; the result depends on the machine's speed
  std::uint64_t contiguous_capacity = 0;           // stop improving at this many bytes; 0: as few as possible
  std::function<void(double)> progress = nullptr;  // 0 to 1; may be empty
  // The search for places ends with the best ones so far when so many ranges were examined; each takes some tens of
  // nanoseconds. If there are none so far, the device is not planned. Not used with `contiguous`.
  std::uint64_t most_examined = ~std::uint64_t{0};
};

// Figures of a plan for its summary.
struct PlanReport {
  std::uint64_t requests = 0;       // of the problem
  std::uint64_t period = 0;         // requests of the repeating body; 0: nothing repeats
  std::uint64_t repetitions = 0;    // of the body, in the problem
  std::uint64_t unrolled = 1;       // steps in the body
  bool by_call_site = false;        // the steady state was found by call sites
  std::uint64_t lanes = 0;          // threads with an order of their own; 0: all requests have one order
  std::uint64_t without_slot = 0;   // requests of threads that are not in the plan
  std::uint64_t late_frees = 0;     // which the caller had removed from the problem (steps/late_frees.h)
  bool contiguous = false;          // planned without stitched views
  bool beginning_only = false;      // nothing repeats: only what lives through the run is planned (beginning.h)
  std::uint64_t dynamic_slots = 0;  // slots with room for the largest size seen
  std::uint64_t stitched_slots = 0;
  std::array<std::uint64_t, kPassReasons> passed{};  // slots that take no bytes, by PassReason
};

struct PlannedDevice {
  DevicePlan plan;
  PlanReport report;
};

// The word for a reason, as summaries print it.
const char* describe(PassReason reason);

// Plans one device. Errors: options that cannot be used, a recorded granularity that no device has; more slots than a
// plan can number; no places were found before the search ended. Pure; deterministic, except with `contiguous`, whose
// result depends on the machine's speed.
Expected<PlannedDevice> plan_device(const Problem& problem, const PlanOptions& options);

}  // namespace stalloc::plan
