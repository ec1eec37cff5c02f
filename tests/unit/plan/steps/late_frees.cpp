// SPDX-License-Identifier: Apache-2.0
#include "plan/steps/late_frees.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "catch.h"
#include "plan/steps/steady_state.h"
#include "plan_and_check.h"

using namespace stalloc;
using namespace stalloc::test;
using plan::Problem;
using plan::UsualFrees;

namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::size_t kStep = 40;  // requests

// The frees that come so many requests later: the request and the number.
using Late = std::vector<std::pair<std::size_t, std::uint64_t>>;

// Weights, and steps whose requests are freed by the next one but one. The run begins with request `first` of a
// step.
Problem steps(std::size_t count, const Late& late, std::size_t first = 0) {
  Problem problem;
  problem.repeats = true;
  for (std::size_t i = 0; i < 1 + count * kStep; ++i) {
    plan::Request& request = problem.requests.emplace_back();
    request.id = request.lower = i;
    request.size = i == 0 ? 64 * kMiB : (16 + (i - 1 + first) % kStep) * kMiB;
    request.until = i == 0 ? plan::kNever : i + 2;
  }
  for (const auto& [request, requests] : late) problem.requests[request].until += requests;
  const std::uint64_t end = problem.requests.size();
  for (plan::Request& request : problem.requests) {
    if (request.until > end) request.until = plan::kNever;
    request.upper = std::min(request.until, end);
  }
  return problem;
}

// One late free in each step, each time of another request.
Late one_in_each_step(std::size_t count) {
  Late late;
  for (std::size_t step = 0; step + 1 < count; ++step) late.emplace_back(1 + step * kStep + 3 * step, 12);
  return late;
}

}  // namespace

TEST_CASE("late frees of different steps do not add up", "[plan][late_frees]") {
  const Problem recorded = steps(11, one_in_each_step(11));
  const UsualFrees usual = plan::without_late_frees(recorded);
  REQUIRE(usual.late == 10);
  REQUIRE(usual.problem.requests.size() == recorded.requests.size());
  for (std::size_t i = 0; i < recorded.requests.size(); ++i) {
    CAPTURE(i);
    CHECK(usual.problem.requests[i].until == steps(11, {}).requests[i].until);
    CHECK(usual.problem.requests[i].upper == steps(11, {}).requests[i].upper);
  }
  const std::uint64_t all = plan_and_check(recorded).plan.physical_bytes;
  const std::uint64_t without = plan_and_check(usual.problem).plan.physical_bytes;
  CHECK(all > plan::peak_live_bytes(recorded) * 5 / 4);
  CHECK(without <= plan::peak_live_bytes(recorded));
}

TEST_CASE("a late free that makes the recorded peak does not count as usual", "[plan][late_frees]") {
  constexpr std::size_t kLargest = kStep - 3;
  const Problem recorded = steps(11, {{1 + 5 * kStep + kLargest, 2}});
  const std::uint64_t peak_of_others = plan::peak_live_bytes(steps(11, {}));
  REQUIRE(plan::peak_live_bytes(recorded) > peak_of_others);
  const UsualFrees usual = plan::without_late_frees(recorded);
  CHECK(usual.late == 1);
  CHECK(plan_and_check(usual.problem).plan.physical_bytes <= peak_of_others + 4 * kMiB);
}

TEST_CASE("a late free in the part of a step before the body does not count as usual", "[plan][late_frees]") {
  constexpr std::size_t kFirst = kStep / 2;
  const Problem recorded = steps(11, {{1 + kStep - kFirst - 3, 2}}, kFirst);
  const std::uint64_t peak_of_others = plan::peak_live_bytes(steps(11, {}, kFirst));
  REQUIRE(plan::peak_live_bytes(recorded) > peak_of_others);
  const UsualFrees usual = plan::without_late_frees(recorded);
  CHECK(usual.late == 1);
  CHECK(plan_and_check(usual.problem).plan.physical_bytes <= peak_of_others + 4 * kMiB);
}

TEST_CASE("late frees do not count either where they leave few repetitions of the body", "[plan][late_frees]") {
  const auto across = GENERATE(true, false);
  CAPTURE(across);
  // One is freed where the fewest bytes were live, so that the body begins later; one outlives its step.
  const Problem recorded = across ? steps(3, {{1 + kStep + 35, 12}}) : steps(5, {{1 + 2 * kStep + 25, kStep}});
  CHECK(plan::find_steady_state(recorded).repetitions == 2);
  const UsualFrees usual = plan::without_late_frees(recorded);
  CHECK(usual.late == 1);
  CHECK(plan_and_check(usual.problem).plan.physical_bytes <= plan::peak_live_bytes(steps(3, {})) + 4 * kMiB);
}

TEST_CASE("late frees of a run with a long beginning do not count either", "[plan][late_frees]") {
  Problem recorded;
  recorded.repeats = true;
  const Problem repeating = steps(11, one_in_each_step(11));
  const std::size_t before = repeating.requests.size() / 2;
  for (std::size_t i = 0; i < before + repeating.requests.size(); ++i) {
    plan::Request& request = recorded.requests.emplace_back();
    if (i >= before) request = repeating.requests[i - before];
    if (i < before) request.size = 512 * (1 + i);
    request.until = i < before ? i + 1 : request.until == plan::kNever ? plan::kNever : request.until + before;
    request.id = request.lower = i;
    request.upper = std::min<std::uint64_t>(request.until, before + repeating.requests.size());
  }
  CHECK(plan::without_late_frees(recorded).late == 10);
}

TEST_CASE("frees that are late without costing memory stay as they were", "[plan][late_frees]") {
  const Late late{{1 + 2 * kStep, 1}, {1 + 5 * kStep, 2}};  // of the smallest request
  const UsualFrees usual = plan::without_late_frees(steps(11, late));
  CHECK(usual.late == 0);
  CHECK(usual.problem.requests[1 + 5 * kStep].until == 1 + 5 * kStep + 4);
}

TEST_CASE("what most steps do is not late", "[plan][late_frees]") {
  const std::size_t steps_of_ten = GENERATE(4, 6);
  Late late;
  for (std::size_t step = 0; step < steps_of_ten; ++step) {
    late.emplace_back(1 + step * kStep + 14, 12);
    late.emplace_back((9 - step) * kStep + 1 + 10, 12);  // not in the same steps
  }
  const UsualFrees usual = plan::without_late_frees(steps(10, late));
  CHECK(usual.late == (steps_of_ten == 4 ? 8 : 0));
}

TEST_CASE("a request that most steps keep for many steps is not late", "[plan][late_frees]") {
  constexpr std::size_t kSteps = 40;
  constexpr std::uint64_t kKept = 10 * kStep;
  Late late = one_in_each_step(12);
  for (std::size_t step = 0; step < kSteps; ++step) {
    if (step % 13 != 5) late.emplace_back(step * kStep + kStep, kKept);
  }
  const UsualFrees usual = plan::without_late_frees(steps(kSteps, late));
  CHECK(usual.late == 11);
  CHECK(usual.problem.requests[20 * kStep + kStep].until == 20 * kStep + kStep + 2 + kKept);
}

TEST_CASE("a run without steps, and requests that are planned once, keep their frees", "[plan][late_frees]") {
  Problem once = steps(11, one_in_each_step(11));
  once.repeats = false;
  CHECK(plan::without_late_frees(once).late == 0);
  CHECK(plan::without_late_frees(steps(2, one_in_each_step(2))).late == 0);
  CHECK(plan::without_late_frees({}).late == 0);
}
