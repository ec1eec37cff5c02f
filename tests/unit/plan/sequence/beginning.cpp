// SPDX-License-Identifier: Apache-2.0
// Recorded runs in which no step repeats: the plan holds what lives through them, and nothing that another run may not
// need.
#include "plan/sequence/beginning.h"

#include <algorithm>
#include <random>

#include "catch.h"
#include "plan/planner.h"
#include "plan_and_check.h"

using namespace stalloc::plan;
using stalloc::test::plan_and_check;

namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// `weights` requests that stay, two temporary ones between each pair of them, then `steps` requests of random sizes on
// two streams. Sizes are never the same twice.
Problem irregular(std::uint32_t seed, std::size_t weights, std::size_t steps) {
  std::mt19937 random(seed);
  Problem problem;
  problem.repeats = true;
  const std::size_t count = 3 * weights + steps;
  for (std::size_t i = 0; i < count; ++i) {
    Request& request = problem.requests.emplace_back();
    request.id = request.lower = i;
    request.size = kMiB + i * 512;
    const bool stays = i < 3 * weights && i % 3 == 0;
    const std::uint64_t until = i + 1 + random() % 10;
    if (!stays && until < count) request.until = until;
    if (i >= 3 * weights) request.stream = request.allocation_stream = request.free_stream = random() % 2;
    request.upper = std::min<std::uint64_t>(request.until, count);
  }
  return problem;
}

}  // namespace

TEST_CASE("without a steady state the plan holds what lives through the run, and no more") {
  const auto planned = plan_and_check(irregular(1, 50, 2000));
  const DevicePlan& plan = planned.plan;
  CHECK(planned.report.beginning_only);
  CHECK(planned.report.period == 0);
  std::uint64_t bytes = 0;
  std::size_t served = 0;
  for (std::size_t i = 0; i < plan.slots.size(); ++i) {
    if (plan.slots[i].kind == SlotKind::PassThrough) continue;
    CHECK(plan.slots[i].kind == SlotKind::Persistent);
    CHECK(i % 3 == 0);
    ++served;
    bytes += plan.slots[i].size;
  }
  CHECK(served == 50);
  CHECK(plan.physical_bytes <= bytes + plan.granularity);
}

TEST_CASE("what is left is served dynamically, in a plan that is small and goes on forever") {
  const DevicePlan plan = plan_and_check(irregular(2, 50, 100'000)).plan;
  CHECK(plan.prologue == 148);  // up to the last weight
  REQUIRE(plan.body == 1);
  CHECK(plan.slots.size() == 149);
  CHECK(plan.varying.size() == 99);
  CHECK(plan.varying.back() == 148);
}

TEST_CASE("what is live because the recording stopped inside a step is not relied upon") {
  Problem problem = irregular(3, 10, 400);
  for (std::size_t i = 400; i < problem.requests.size(); ++i) problem.requests[i].until = kNever;
  const auto planned = plan_and_check(problem);
  const auto served = std::count_if(planned.plan.slots.begin(), planned.plan.slots.end(),
                                    [](const Slot& slot) { return slot.kind != SlotKind::PassThrough; });
  CHECK(served == 10);
}

TEST_CASE("a run in which nothing stays is left to the run time") {
  const auto planned = plan_and_check(irregular(4, 0, 500));
  CHECK(planned.plan.physical_bytes == 0);
  CHECK(planned.plan.slots.size() == 1);
  CHECK(planned.plan.body == 1);
}

TEST_CASE("on demand the whole run is planned all the same") {
  const Problem problem = irregular(5, 10, 300);
  const auto planned = plan_and_check(problem, {.whole_run = true});
  CHECK_FALSE(planned.report.beginning_only);
  CHECK(planned.plan.slots.size() == problem.requests.size());
  CHECK(planned.plan.varying.empty());
  CHECK(planned.plan.peak_live_bytes == peak_live_bytes(problem));
}

TEST_CASE("a CSV has no beginning; a run of which all stays is planned whole") {
  Problem problem = irregular(6, 10, 300);
  problem.repeats = false;
  CHECK(find_beginning(problem).period == 0);
  Problem lasting = irregular(7, 1, 0);
  lasting.requests.resize(1);
  lasting.requests[0].upper = 1;
  CHECK(find_beginning(lasting).period == 0);
  CHECK(plan_and_check(lasting).plan.slots.size() == 1);
}
