// SPDX-License-Identifier: Apache-2.0
// The estimate meets the figures it was made from, and counts what is mapped twice.
#include "plan/layout/startup_cost.h"

#include "catch.h"

using namespace stalloc::plan;

namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

DevicePlan plan_of(std::size_t handles, std::uint64_t bytes) {
  DevicePlan plan;
  plan.handles.assign(handles, bytes);
  View& home = plan.views.emplace_back();
  for (std::size_t i = 0; i < handles; ++i) home.handles.push_back(static_cast<std::uint32_t>(i));
  return plan;
}

bool near(double value, double expected, double share) {
  return value > expected * (1 - share) && value < expected * (1 + share);
}

}  // namespace

TEST_CASE("the start-up estimate meets what was measured") {
  CHECK(estimate_startup_ms({}) == 0);
  CHECK(near(estimate_startup_ms(plan_of(2048, 2 * kMiB)), 26 + 60, 0.3));    // 4 GiB in small handles
  CHECK(near(estimate_startup_ms(plan_of(128, 32 * kMiB)), 1.6 + 3.3, 0.3));  // the same in larger ones
  CHECK(near(estimate_startup_ms(plan_of(1, 102400 * kMiB)), 211, 0.05));     // 100 GiB in one
}

TEST_CASE("a stitched view costs its handles again, but not their creation") {
  DevicePlan plan = plan_of(4, 2 * kMiB);
  const double home = estimate_startup_ms(plan);
  plan.views.push_back({4 * kMiB, {1, 3}});
  const double more = estimate_startup_ms(plan) - home;
  CHECK(more > 0);
  CHECK(more < home / 2);
}
