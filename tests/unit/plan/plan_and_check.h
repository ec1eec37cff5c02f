// SPDX-License-Identifier: Apache-2.0
// A plan, with everything that must hold of any plan checked.
#pragma once

#include <algorithm>
#include <utility>

#include "catch.h"
#include "plan/checker.h"
#include "plan/files/plan_file.h"
#include "plan/planner.h"

namespace stalloc::test {

inline plan::PlannedDevice plan_and_check(const plan::Problem& problem, const plan::PlanOptions& options = {}) {
  auto planned = plan::plan_device(problem, options);
  REQUIRE(planned.error.empty());
  const plan::DevicePlan& made = planned.value.plan;
  CHECK(plan::find_defect({"", "", 0, {made}}).empty());
  CHECK(plan::find_unsoundness(problem, made).empty());
  CHECK(made.peak_live_bytes <= plan::peak_live_bytes(problem));
  CHECK(made.physical_bytes >= made.peak_live_bytes);
  const std::uint64_t default_cap =
      std::max({plan::kDefaultHandleBytes, made.physical_bytes / plan::kDefaultHandles, made.granularity});
  for (const std::uint64_t handle : made.handles) {
    CHECK((options.contiguous || handle <= (options.handle_cap != 0 ? options.handle_cap : default_cap)));
  }
  if (options.streams == plan::StreamMode::Isolate) CHECK(made.waits.empty());
  const auto decoded = plan::decode_plan(plan::encode_plan({"", "", 0, {made}}));
  REQUIRE(decoded.error.empty());
  CHECK(decoded.value.devices[0].varying == made.varying);
  CHECK(decoded.value.devices[0].lanes == made.lanes);
  CHECK(decoded.value.devices[0].unplaced == made.unplaced);
  return std::move(planned.value);
}

}  // namespace stalloc::test
