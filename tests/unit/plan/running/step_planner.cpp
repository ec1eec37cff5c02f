// SPDX-License-Identifier: Apache-2.0
// Which steps of a running program are planned, and when.
#include "plan/running/step_planner.h"

#include <cstdint>
#include <deque>
#include <optional>
#include <random>
#include <vector>

#include "catch.h"
#include "plan/online/mapped_memory.h"
#include "plan/online/online_policy.h"
#include "plan/running/request_log.h"

using namespace stalloc;
using plan::StepPlanner;

namespace {

constexpr std::uint64_t kPage = std::uint64_t{2} << 20;
constexpr std::uint64_t kMapped = 100'000;  // handles, more than any plan here maps

// Requests that each live until the third request after them.
struct Steps {
  StepPlanner planner{kPage, plan::OnlinePolicy{}};
  plan::OnlineCounts counts;
  std::uint64_t number = 0;
  std::deque<std::uint64_t> live;

  bool request(std::uint64_t pages) {
    planner.requested(++number, pages * kPage, 1, counts);
    live.push_back(number);
    if (live.size() > 3) {
      planner.freed(live.front(), 1);
      live.pop_front();
    }
    return planner.offers();
  }
  // Makes a step of `length` requests, during which `mapped` handles are mapped. Whether a plan was offered.
  bool step(std::size_t length, std::uint64_t mapped) {
    bool offered = false;
    for (std::size_t i = 0; i < length; ++i) {
      offered |= request(i % 7 + (i == 0 ? 20 : 1));
      if (i == length / 2) counts.mapped += mapped;
    }
    return offered;
  }
  // Makes steps until a plan is offered. Returns how many; `most`, if none was.
  int steps_until_offer(std::size_t length, std::uint64_t mapped, int most = 100) {
    for (int i = 0; i < most; ++i) {
      if (step(length, mapped)) return i;
    }
    return most;
  }
};

}  // namespace

TEST_CASE("a step that repeats is offered at its beginning", "[plan][running]") {
  Steps steps;
  const int made = steps.steps_until_offer(300, kMapped);
  REQUIRE(made >= 6);
  REQUIRE(made < 20);
  const plan::DevicePlan& plan = steps.planner.plan();
  REQUIRE(plan.prologue == 0);
  REQUIRE(plan.body == 300);
  REQUIRE(plan.slots.size() == 300);
  // The first slot is that of the request at which the plan is offered.
  steps.counts.mapped += kMapped;
  bool offered = false;
  std::size_t at = 0;
  for (; at < 300 && !offered; ++at) offered = steps.request(at % 7 + (at == 0 ? 20 : 1));
  REQUIRE(offered);
  REQUIRE(plan.slots[0].size == ((at - 1) % 7 + (at == 1 ? 20 : 1)) * kPage);
}

TEST_CASE("a step begins where all frees are complete, unless much more lives there", "[plan][running]") {
  const std::size_t settled = GENERATE(60, 146);  // in each step: little lives when the first one is made
  Steps steps;
  std::optional<std::size_t> offered;
  for (int i = 0; i < 30 && !offered; ++i) {
    for (std::size_t at = 0; at < 300 && !offered; ++at) {
      if (at == settled) steps.planner.settled();
      if (steps.request(at >= 140 && at < 150 ? 30 : 1 + at % 2)) offered = at;
      if (at == 200) steps.counts.mapped += kMapped;
    }
  }
  REQUIRE(offered);
  REQUIRE((*offered == settled) == (settled == 60));
  REQUIRE(steps.planner.plan().slots[0].size == (1 + *offered % 2) * kPage);
}

TEST_CASE("a step is not offered while nothing is mapped, or little", "[plan][running]") {
  Steps steps;
  SECTION("nothing") { REQUIRE(steps.steps_until_offer(300, 0) == 100); }
  SECTION("less than taking up the plan would map") {
    const int often = steps.steps_until_offer(300, kMapped);
    Steps rarely;
    const int made = rarely.steps_until_offer(300, 1);
    REQUIRE(made > often);
    REQUIRE(made >= static_cast<int>(rarely.planner.plan().handles.size()));
  }
}

TEST_CASE("a program that maps memory again after many steps without is planned, too", "[plan][running]") {
  Steps steps;
  REQUIRE(steps.step(300, 1) == false);
  REQUIRE(steps.steps_until_offer(300, 0, 200) == 200);
  const int made = steps.steps_until_offer(300, kMapped);
  REQUIRE(made >= 6);
  REQUIRE(made < 20);
}

TEST_CASE("a program whose steps differ is not planned", "[plan][running]") {
  Steps steps;
  for (std::size_t i = 0; i < 60; ++i) REQUIRE_FALSE(steps.step(300 + i, kMapped));
}

TEST_CASE("a step that changes is planned anew", "[plan][running]") {
  Steps steps;
  REQUIRE(steps.steps_until_offer(300, kMapped) < 20);
  for (int i = 0; i < 3; ++i) steps.step(200, kMapped);
  REQUIRE_FALSE(steps.planner.has_plan());
  REQUIRE(steps.steps_until_offer(200, kMapped) < 100);
  REQUIRE(steps.planner.plan().body == 200);
}

TEST_CASE("nothing is offered right after a restart", "[plan][running]") {
  Steps steps;
  REQUIRE(steps.steps_until_offer(300, kMapped) < 20);
  steps.planner.restart();
  REQUIRE_FALSE(steps.planner.offers());
  REQUIRE_FALSE(steps.planner.has_plan());
  REQUIRE(steps.steps_until_offer(300, kMapped) >= 6);
}

// Finding places for it takes time that grows with the square of the step.
TEST_CASE("a step whose places take long to find is not planned, and rarely tried again", "[plan][running]") {
  constexpr std::size_t kLength = 2000;
  std::mt19937 random(1);
  struct Wanted {
    std::uint64_t bytes = 0;
    std::size_t lifetime = 0;  // in requests
    plan::StreamIndex stream = 0;
  };
  std::vector<Wanted> step(kLength);
  for (Wanted& wanted : step) {
    wanted.bytes = kPage / 2 + (1 + random() % 20'000) * plan::kUnitBytes;
    wanted.lifetime = 1 + random() % kLength;
    wanted.stream = 1 + random() % 3;
  }
  StepPlanner planner(kPage, plan::OnlinePolicy{});
  plan::OnlineCounts counts;
  std::vector<std::vector<std::uint64_t>> dead(2 * kLength);  // by the request before which they are freed
  for (std::uint64_t now = 0; now < 60 * kLength; ++now) {
    std::vector<std::uint64_t>& freed = dead[now % dead.size()];
    for (const std::uint64_t number : freed) planner.freed(number, 1);
    freed.clear();
    const Wanted& wanted = step[now % kLength];
    planner.requested(now, wanted.bytes, wanted.stream, counts);
    dead[(now + wanted.lifetime) % dead.size()].push_back(now);
    ++counts.mapped;
    REQUIRE_FALSE(planner.offers());
  }
  REQUIRE(planner.useless_plans() >= 1);
  REQUIRE(planner.useless_plans() <= 5);
}

TEST_CASE("a plan that is not taken up is made less and less often", "[plan][running]") {
  Steps steps;
  for (int i = 0; i < 1000; ++i) steps.step(300, kMapped);
  REQUIRE(steps.planner.useless_plans() >= 2);
  REQUIRE(steps.planner.useless_plans() <= 8);
}

TEST_CASE("a program that changes its step whenever it is planned is planned less and less often", "[plan][running]") {
  Steps steps;
  std::size_t length = 300;
  for (int i = 0; i < 1000; ++i) {
    steps.step(length, 1);
    if (steps.planner.has_plan()) length = length == 300 ? 250 : 300;
  }
  REQUIRE(steps.planner.useless_plans() >= 2);
  REQUIRE(steps.planner.useless_plans() <= 8);
}

TEST_CASE("the log pairs requests and frees", "[plan][running]") {
  plan::RequestLog log;
  log.add(10, 2 * kPage, 1);
  log.add(12, kPage, 2);
  log.freed(11, 1);  // of a request that is not in the log
  log.freed(10, 3);
  log.add(15, 3 * kPage, 1);
  log.add(15, 4 * kPage, 1);  // the first was refused
  log.freed(15, 0);
  const plan::Problem all = log.problem(0, kPage);
  REQUIRE(all.requests.size() == 4);
  REQUIRE(all.requests[0].size == 2 * kPage);
  REQUIRE(all.requests[0].until == 2);
  REQUIRE(all.requests[0].free_stream == 3);
  REQUIRE(all.requests[1].until == plan::kNever);
  REQUIRE(all.requests[1].stream == 2);
  REQUIRE(all.requests[2].until == plan::kNever);
  REQUIRE(all.requests[3].until == 4);
  REQUIRE(all.requests[3].free_stream == plan::kEveryStream);
  const plan::Problem later = log.problem(1, kPage);
  REQUIRE(later.requests.size() == 3);
  REQUIRE(later.requests[2].until == 3);
  log.clear();
  REQUIRE(log.size() == 0);
}
