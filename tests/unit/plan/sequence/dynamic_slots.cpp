// SPDX-License-Identifier: Apache-2.0
// Steps whose requests vary in size: found by call sites, planned soundly, without counting on the recorded sizes.
#include "plan/sequence/dynamic_slots.h"

#include <algorithm>
#include <random>

#include "catch.h"
#include "plan/planner.h"
#include "plan/sequence/varying.h"
#include "plan_and_check.h"
#include "tests/unit/seeds.h"

using namespace stalloc::plan;
using stalloc::test::plan_and_check;

namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// One request of a step: made at a call site of its own, freed `life` requests later.
struct Made {
  std::uint64_t size;
  std::uint64_t spread = 0;  // its size varies by so much
  std::uint64_t life = 1;
};

// `before` requests that stay, then the step again and again.
Problem loop(const std::vector<Made>& step, std::size_t steps, std::uint32_t seed, std::size_t before = 3) {
  std::mt19937 random(seed);
  Problem problem;
  problem.repeats = true;
  const std::size_t count = before + steps * step.size();
  for (std::size_t i = 0; i < count; ++i) {
    Request& request = problem.requests.emplace_back();
    request.id = request.lower = i;
    request.module = 1;
    request.size = kMiB;
    request.stack = static_cast<std::uint32_t>(1000 + i);
    if (i >= before) {
      const Made& made = step[(i - before) % step.size()];
      request.stack = static_cast<std::uint32_t>(1 + (i - before) % step.size());
      request.size = made.size + (made.spread == 0 ? 0 : random() % made.spread);
      request.until = i + made.life < count ? i + made.life : kNever;
    }
    request.upper = std::min<std::uint64_t>(request.until, count);
  }
  return problem;
}

}  // namespace

TEST_CASE("steps whose sizes vary repeat by call site") {
  const Problem problem = loop({{5 * kMiB}, {kMiB, 3 * kMiB}, {7 * kMiB, 0, 2}, {kMiB / 2}}, 6, 1);
  const SteadyState steady = find_steady_state(problem);
  CHECK(steady.period == 4);
  REQUIRE(steady.sizes.size() == 4);
  const auto varying = std::count_if(steady.sizes.begin(), steady.sizes.end(), [](const Sizes& s) { return s.vary(); });
  CHECK(varying == 1);
  for (const Sizes& sizes : steady.sizes) {
    CHECK(sizes.smallest <= sizes.largest);
    if (!sizes.vary()) continue;
    std::uint64_t largest = 0;
    for (const Request& request : problem.requests) largest = std::max(largest, request.stack == 2 ? request.size : 0);
    CHECK(sizes.largest == largest);
    CHECK(sizes.distinct > 2);
  }
}

TEST_CASE("without call sites steps whose sizes vary are none; sizes that repeat need none") {
  Problem problem = loop({{5 * kMiB}, {kMiB, 3 * kMiB}, {7 * kMiB}}, 6, 1);
  problem.requests[4].stack = 0;
  CHECK(find_steady_state(problem).period == 0);
  const SteadyState exact = find_steady_state(loop({{5 * kMiB}, {kMiB}, {7 * kMiB}}, 6, 1));
  CHECK(exact.period == 3);
  CHECK(exact.sizes.empty());
}

TEST_CASE("a varying request gets room where what is planned leaves some, and is not counted on") {
  // The second varying one comes when the 100 MiB are free again.
  const std::vector<Made> step = {{100 * kMiB, 0, 2}, {10 * kMiB, 40 * kMiB}, {10 * kMiB, 10 * kMiB}, {2 * kMiB}};
  const auto planned = plan_and_check(loop(step, 5, 2));
  CHECK(planned.report.by_call_site);
  CHECK(planned.report.dynamic_slots == 1);
  CHECK(planned.plan.varying.size() == 1);
  CHECK(planned.plan.physical_bytes <= 104 * kMiB);  // 100 and what stays
}

TEST_CASE("one size in a few repetitions does not make a request static where its like vary") {
  // Two layers make the same calls; the router happens to give the expert of the second one the same size in each step.
  std::vector<Made> layer = {{kMiB}, {2 * kMiB}, {3 * kMiB}, {4 * kMiB}, {5 * kMiB}, {6 * kMiB}, {7 * kMiB}, {kMiB}};
  std::vector<Made> step = layer;
  step.back().spread = 50 * kMiB;
  step.insert(step.end(), layer.begin(), layer.end());
  step.push_back({9 * kMiB});
  Problem problem = loop(step, 4, 7);
  for (std::size_t i = 3; i < problem.requests.size(); ++i) {
    const std::size_t phase = (i - 3) % step.size();
    problem.requests[i].stack = static_cast<std::uint32_t>(phase < 16 ? 1 + phase % 8 : 20);
  }
  const SteadyState steady = find_steady_state(problem);
  REQUIRE(steady.period == step.size());
  const std::vector<std::uint64_t> varying = find_varying(problem, steady);
  for (std::size_t i = 3 + step.size(); i < problem.requests.size(); ++i) {
    CHECK((varying[i] != 0) == (problem.requests[i].stack == 8));
  }
}

TEST_CASE("a run of other sizes needs hardly more than its own peak") {
  // Static requests come and go beside experts that share 600 MiB: a plan for all of them would hold both peaks.
  std::vector<Made> step = {{100 * kMiB, 0, 20}};
  for (int i = 0; i < 8; ++i) step.push_back({20 * kMiB, 0, static_cast<std::uint64_t>(9 - i)});
  for (int i = 0; i < 8; ++i) step.push_back({10 * kMiB, 60 * kMiB, static_cast<std::uint64_t>(9 - i)});
  for (int i = 0; i < 4; ++i) step.push_back({5 * kMiB});
  const auto planned = plan_and_check(loop(step, 6, 1));
  const Problem other = loop(step, 6, 99);
  Problem rest = other;  // what the plan does not serve
  const std::size_t begin = planned.plan.prologue;
  REQUIRE(planned.plan.body == step.size());
  for (std::size_t i = 0; i < other.requests.size(); ++i) {
    const std::size_t slot_at = i < begin ? i : begin + (i - begin) % step.size();
    const Slot& slot = planned.plan.slots[slot_at];
    if (slot.kind != SlotKind::PassThrough && other.requests[i].size <= slot.size) {
      rest.requests[i].pass = PassReason::Empty;
    }
  }
  const double needed = static_cast<double>(planned.plan.physical_bytes + peak_live_bytes(rest));
  CHECK(needed <= 1.02 * static_cast<double>(peak_live_bytes(other)));
  CHECK(planned.plan.physical_bytes > 100 * kMiB);
}

TEST_CASE("where the largest sizes never come together, they get no place at the peak") {
  // Two experts share 100 MiB in changing parts: room for the largest of both would be nearly 200.
  Problem problem = loop({{kMiB, 98 * kMiB, 3}, {kMiB, 0, 2}, {300 * kMiB}, {2 * kMiB}}, 12, 3);
  for (std::size_t i = 3; i < problem.requests.size(); i += 4) {
    problem.requests[i + 1].size = 100 * kMiB - problem.requests[i].size;
  }
  const auto planned = plan_and_check(problem);
  CHECK(planned.plan.physical_bytes <= 310 * kMiB);
  CHECK_FALSE(planned.plan.varying.empty());
  for (const std::uint32_t slot : planned.plan.varying) {
    CHECK(planned.plan.slots[slot].kind == SlotKind::PassThrough);
    CHECK(planned.plan.slots[slot].size > 50 * kMiB);
  }
}

TEST_CASE("what is asked for before the steps is taken for varying by its call site") {
  Problem problem = loop({{100 * kMiB, 0, 2}, {100 * kMiB}, {10 * kMiB, 40 * kMiB}, {20 * kMiB}}, 5, 2);
  problem.requests[1].stack = 3;  // where the varying one is made, with a size of its own
  problem.requests[1].until = 2;
  problem.requests[1].upper = 2;
  const auto planned = plan_and_check(problem);
  CHECK(planned.plan.slots[1].kind == SlotKind::Dynamic);
  CHECK(planned.plan.slots[0].kind == SlotKind::Persistent);
}

TEST_CASE("random loops with varying sizes are planned soundly") {
  std::size_t found = 0;
  std::size_t placed = 0;
  std::size_t left = 0;
  for (const std::uint64_t seed : stalloc::seeds(200)) {
    std::mt19937 random(seed);
    const std::size_t period = 4 + random() % 40;
    std::vector<Made> step;
    for (std::size_t i = 0; i < period; ++i) {
      Made& made = step.emplace_back(Made{1 + random() % 200'000});
      if (random() % 3 == 0) made.spread = 1 + random() % 400'000;
      made.life = 1 + random() % (random() % 5 == 0 ? 2 * period : period / 2);
    }
    Problem problem = loop(step, 2 + random() % 5, seed, random() % 20);
    if (seed % 3 == 0) problem.requests.resize(problem.requests.size() - random() % period);
    for (Request& request : problem.requests) {
      if (request.until > problem.requests.size()) request.until = kNever;
      request.upper = std::min<std::uint64_t>(request.until, problem.requests.size());
      request.stream = request.allocation_stream = request.free_stream = request.stack % (1 + seed % 3);
    }
    const PlanOptions options{.granularity = 64 * 1024,
                              .streams = seed % 2 == 0 ? StreamMode::Order : StreamMode::Isolate};
    const auto planned = plan_and_check(problem, options);
    found += planned.report.by_call_site ? 1 : 0;
    placed += planned.report.dynamic_slots;
    left += planned.plan.varying.size();
  }
  CHECK(found > 100);
  CHECK(placed > 10);
  CHECK(left > 100);
}
