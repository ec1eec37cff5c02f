// SPDX-License-Identifier: Apache-2.0
// Threads that interleave differently from step to step: their steps are found, and planned soundly.
#include "plan/steps/thread_order.h"

#include <algorithm>
#include <random>
#include <set>

#include "catch.h"
#include "child.h"
#include "plan/sequence/sequence.h"
#include "plan/steps/reorder.h"
#include "plan/steps/steps.h"
#include "plan/steps/thread_places.h"
#include "plan/successive_threads.h"
#include "plan_and_check.h"
#include "threads.h"

using namespace stalloc;
using namespace stalloc::test;

namespace {

constexpr int kSteps = 8;
constexpr std::uint64_t kMiB = 1 << 20;

using Random = std::mt19937_64;

double between(double low, double high, Random& random) {
  return low + (high - low) * static_cast<double>(random() % 4096) / 4096;
}

// Another thread stages two batches a step, each freed before the next one is made, at times that no two steps share.
void add_loader(Interleaved& program, std::uint32_t thread, int every, Random& random, double low = 30,
                double high = 170) {
  for (int step = 0; step < kSteps; step += every) {
    const double begin = step * kStep + between(low, high, random);
    const auto staged = program.alloc(begin, thread, 5 * kMiB);
    const auto cast = program.alloc(begin + between(1, 20, random), thread, 2 * kMiB + 512);
    program.free(begin + between(20, 40, random), thread, staged);
    program.free(begin + between(40, 60, random), thread, cast);
  }
}

plan::Problem training_with_loader(Random& random, int every = 1, std::uint32_t backward_thread = 0) {
  Interleaved program;
  add_training(program, 0, kSteps, backward_thread);
  add_loader(program, 5, every, random);
  return program.problem();
}

// All threads but the first allocate on one stream.
plan::Problem problem_on_two_streams(const Interleaved& program) {
  trace::Trace trace = program.trace();
  for (trace::Event& event : trace.events) {
    event = trace::Event(event.time_ns(), event.address(), event.size(), std::min(event.stream(), 2U), event.thread(),
                         0, 0, 0, event.kind(), 0);
  }
  return plan::find_lifetimes(trace).devices.at(0);
}

std::size_t count_of(const plan::Problem& problem, std::uint32_t thread) {
  return static_cast<std::size_t>(std::count_if(problem.requests.begin(), problem.requests.end(),
                                                [&](const plan::Request& r) { return r.thread == thread; }));
}

}  // namespace

TEST_CASE("steps are found in which another thread comes now earlier, now later", "[threads]") {
  Random random(GENERATE(range(1U, 11U)));
  const plan::Problem problem = training_with_loader(random);
  const plan::Steps steps = plan::find_steps(problem);
  REQUIRE(steps.threads);
  CHECK(steps.steady.period == 62);  // 3 for each of 20 layers, 2 of the loader
  CHECK(steps.steady.repetitions >= kSteps - 2);
  CHECK(std::set<std::uint8_t>(steps.threads->lanes.begin(), steps.threads->lanes.end()).size() == 2);

  const plan::PlannedDevice planned = plan_and_check(problem);
  CHECK(planned.report.lanes == 2);
  CHECK(planned.report.without_slot == 0);
  CHECK(planned.plan.lanes.size() == planned.plan.slots.size());
  CHECK(static_cast<double>(planned.plan.physical_bytes) < 1.02 * static_cast<double>(peak_live_bytes(problem)));
}

TEST_CASE("threads that keep their place are one order", "[threads]") {
  Interleaved program;
  add_training(program, 0, kSteps, 1);
  const plan::Steps steps = plan::find_steps(program.problem());
  CHECK_FALSE(steps.threads);
  CHECK(steps.steady.period == 60);
  CHECK(plan_and_check(program.problem()).plan.lanes.empty());
}

TEST_CASE("a thread that comes every second step makes the body two steps long", "[threads]") {
  Random random(GENERATE(range(1U, 6U)));
  const plan::Problem problem = training_with_loader(random, 2);
  const plan::Steps steps = plan::find_steps(problem);
  REQUIRE(steps.threads);
  CHECK(steps.steady.period == 122);
  CHECK(plan_and_check(problem).report.without_slot == 0);
}

TEST_CASE("of three threads two keep their place and the third does not", "[threads]") {
  Random random(GENERATE(range(1U, 6U)));
  const plan::Problem problem = training_with_loader(random, 1, 1);
  const plan::PlannedDevice planned = plan_and_check(problem);
  CHECK(planned.report.period == 62);
  CHECK(planned.report.lanes == 3);
  CHECK(planned.report.without_slot == 0);
  CHECK(static_cast<double>(planned.plan.physical_bytes) < 1.02 * static_cast<double>(peak_live_bytes(problem)));
}

TEST_CASE("two threads come now earlier, now later", "[threads]") {
  Random random(GENERATE(range(1U, 6U)));
  Interleaved program;
  add_training(program, 0, kSteps, 0);
  add_loader(program, 1, 1, random);
  add_loader(program, 2, 1, random, 300, 400);
  const plan::PlannedDevice planned = plan_and_check(program.problem());
  CHECK(planned.report.period == 64);
  CHECK(planned.report.lanes == 3);
  CHECK(planned.report.without_slot == 0);
}

TEST_CASE("threads that are started anew for each step are one", "[threads]") {
  Random random(GENERATE(range(1U, 6U)));
  Interleaved program;
  add_training(program, 0, kSteps, 0);
  for (std::uint32_t step = 0; step < kSteps; ++step) {
    const double begin = step * kStep + between(30, 170, random);
    const auto staged = program.alloc(begin, 7 + step, 5 * kMiB);
    program.free(begin + between(40, 60, random), 7 + step, program.alloc(begin + 5, 7 + step, 2 * kMiB));
    program.free(begin + between(60, 80, random), 7 + step, staged);
  }
  const plan::Problem problem = problem_on_two_streams(program);
  CHECK(count_of(problem, 7) == 2 * kSteps);
  const plan::PlannedDevice planned = plan_and_check(problem);
  CHECK(planned.report.period == 62);
  CHECK(planned.report.lanes == 2);
  CHECK(planned.report.without_slot == 0);
}

// The recording ends while the last of the threads that are started anew for each step is at work, so it made less than
// the others and is not one with them. It must not take their part in the last repetition: a slot belongs to one
// thread.
TEST_CASE("threads that are started anew for each step, the last one cut off, are planned soundly", "[threads]") {
  const auto seed = GENERATE(range(1U, 11U));
  CAPTURE(seed);
  Random random(seed);
  Interleaved program;
  std::optional<Interleaved::Id> kept;
  for (std::uint32_t step = 0; step < kSteps; ++step) {
    const double begin = step * kStep;
    const bool last = step + 1 == kSteps;
    std::vector<Interleaved::Id> forward;  // fewest bytes are live after it, so the body begins there
    for (std::uint64_t i = 0; i < 20; ++i) {
      forward.push_back(program.alloc(begin + 20 * static_cast<double>(i), 0, kMiB + i * plan::kUnitBytes));
    }
    if (kept) program.free(begin + 420, 0, *kept);
    for (const Interleaved::Id id : forward) program.free(begin + 440, 0, id);
    const std::uint32_t loader = 7 + step;
    const double staged_at = begin + 305 + (last ? 0 : between(0, 90, random));  // the earliest place in the step
    program.free(staged_at + 1, loader, program.alloc(staged_at, loader, 512));
    if (last) break;
    for (std::uint64_t i = 0; i < 20; ++i) {
      const double time = begin + 500 + 20 * static_cast<double>(i);
      kept = program.alloc(time, 0, 2 * kMiB + i * plan::kUnitBytes);
      if (i < 19) program.free(time + 1, 0, *kept);
    }
    const double cast_at = begin + 510 + between(0, 200, random);
    program.free(cast_at + 1, loader, program.alloc(cast_at, loader, 1024));
  }
  const plan::Problem problem = problem_on_two_streams(program);
  CHECK(count_of(problem, 7) == 2 * (kSteps - 1));
  CHECK(count_of(problem, 7 + kSteps - 1) == 1);
  const plan::PlannedDevice planned = plan_and_check(problem);
  CHECK(planned.report.period == 42);
  CHECK(planned.report.lanes >= 2);
}

TEST_CASE("threads that make other requests, or make them at the same time, are not one", "[threads]") {
  TraceBuilder calls;
  const auto thread_of_last = [&](std::uint32_t thread, std::uint64_t size) {
    calls.thread = thread;
    calls.alloc(size);
    return plan::find_lifetimes(calls.trace()).devices.at(0).requests.back().thread;
  };
  CHECK(thread_of_last(1, 1000) == 1);
  CHECK(thread_of_last(2, 2000) == 2);
  CHECK(thread_of_last(3, 1024) == 1);  // after thread 1
  CHECK(thread_of_last(1, 3000) == 1);
  CHECK(plan::find_lifetimes(calls.trace()).devices.at(0).requests[2].thread == 3);  // between its requests, after all
}

TEST_CASE("a program may start very many threads that all differ", "[threads]") {
  constexpr std::uint32_t kThreads = 150'000;
  plan::Problem problem;
  for (std::uint32_t thread = 0; thread < kThreads; ++thread) {
    plan::Request& request = problem.requests.emplace_back();
    request.size = (thread + 1) * plan::kUnitBytes;
    request.thread = thread;
  }
  // A child may take a minute. To compare each thread with each earlier one takes many times as long.
  CHECK(holds_in_child([&problem] {
    plan::merge_successive_threads(problem);
    return std::all_of(problem.requests.begin(), problem.requests.end(),
                       [n = 0U](const plan::Request& request) mutable { return request.thread == n++; });
  }));
}

TEST_CASE("a thread may make very many equal requests in each step", "[threads]") {
  constexpr std::int64_t kRequests = 100'000;  // of a step
  constexpr std::int64_t kAll = 6 * kRequests;
  std::vector<std::int64_t> made_at;
  for (std::int64_t i = 0; i < kAll; ++i) made_at.push_back(2 * i);
  const plan::Run others{0, 2 * kAll, 2 * kRequests};
  // A child may take a minute. To look at all requests for each period that may be the step's takes longer.
  CHECK(holds_in_child([&] {
    return plan::find_places(made_at, std::vector<std::uint32_t>(made_at.size()), others, 1) == std::optional(made_at);
  }));
}

TEST_CASE("a thread that drifts is left out", "[threads]") {
  Interleaved program;
  add_training(program, 0, kSteps, 0);
  std::size_t requests = 0;
  Random random(1);
  for (double time = 0; time < kSteps * kStep; time += between(100, 900, random), ++requests) {
    program.free(time + 330, 1, program.alloc(time, 1, 60 * kMiB));
  }
  const plan::Problem problem = program.problem();
  const plan::PlannedDevice planned = plan_and_check(problem);
  CHECK(planned.report.period == 60);
  CHECK(planned.report.lanes == 1);
  CHECK(planned.report.without_slot == requests);
  CHECK(planned.plan.peak_live_bytes < peak_live_bytes(problem));
}

TEST_CASE("a thread whose requests take turns in the run and would not in the plan is left out", "[threads]") {
  Random random(2);
  Interleaved program;
  add_training(program, 0, kSteps, 0);
  for (int step = 0; step < kSteps; ++step) {
    const double begin = step * kStep;
    const auto first = program.alloc(begin + 25, 1, 40 * kMiB);
    const auto second = program.alloc(begin + 30 + between(0, 60, random), 1, 40 * kMiB);
    const bool early = step == 0 || step == 3 || step == 5 || step == 6;  // in no period of steps
    program.free(begin + 95, 1, early ? first : second);
    program.free(begin + 650, 1, early ? second : first);  // the peak is at 500
  }
  const plan::Problem problem = program.problem();
  const plan::PlannedDevice planned = plan_and_check(problem);
  CHECK(planned.report.period == 60);
  CHECK(planned.report.without_slot == 2 * kSteps);
}

TEST_CASE("a thread without repetitions is left out", "[threads]") {
  Random random(3);
  Interleaved program;
  add_training(program, 0, kSteps, 0);
  for (int i = 0; i < 40; ++i) {
    const double time = between(0, kSteps * kStep, random);
    program.free(time, 1, program.alloc(time, 1, random() % kMiB + 1));
  }
  const plan::PlannedDevice planned = plan_and_check(program.problem());
  CHECK(planned.report.period == 60);
  CHECK(planned.report.lanes == 1);
  CHECK(planned.report.without_slot == 40);
}

TEST_CASE("a thread that helps at the start alone stays in its place", "[threads]") {
  Random random(4);
  Interleaved program;
  for (int i = 0; i < 30; ++i) program.alloc(-200 + i, 2, kMiB + static_cast<std::uint64_t>(i) * 512);
  add_training(program, 0, kSteps, 0);
  add_loader(program, 1, 1, random);
  const plan::PlannedDevice planned = plan_and_check(program.problem());
  CHECK(planned.report.period == 62);
  CHECK(planned.report.lanes == 3);
  CHECK(planned.report.without_slot == 0);
}

TEST_CASE("a queue that is filled first does not hide the steps", "[threads]") {
  Random random(GENERATE(range(1U, 6U)));
  Interleaved program;
  add_training(program, 0, kSteps, 0);
  std::vector<Interleaved::Id> queue;
  for (int batch = 0; batch < kSteps; ++batch) {  // one thread makes a batch, the other frees it three steps later
    const int step = std::max(0, batch - 2);
    queue.push_back(program.alloc(step * kStep + between(30, 170, random), 1, 4 * kMiB));
    program.free(batch * kStep + 400, 0, queue.back());
  }
  const plan::PlannedDevice planned = plan_and_check(program.problem());
  CHECK(planned.report.lanes == 2);
  CHECK(planned.report.without_slot == 0);
  CHECK(planned.report.period % 61 == 0);
}

TEST_CASE("steps by call site are found in threads too", "[threads]") {
  Random random(5);
  plan::Problem problem = training_with_loader(random);
  std::vector<std::uint32_t> made(6);
  for (plan::Request& request : problem.requests) {
    const std::uint32_t at = made[request.thread]++;
    request.stack = request.thread == 5 ? 100 + at % 2 : at < 20 ? 1 : 2 + (at - 20) % 60;
    if (request.stack == 7) request.size = random() % kMiB + 1;  // an expert
  }
  const plan::Steps steps = plan::find_steps(problem);
  REQUIRE(steps.threads);
  CHECK(steps.steady.period == 62);
  CHECK(steps.steady.sizes.size() == 62);
  CHECK(plan_and_check(problem).report.by_call_site);
}

TEST_CASE("any threads that share memory and come at any time are planned soundly", "[threads]") {
  const auto seed = GENERATE(range(1U, 61U));
  CAPTURE(seed);
  Random random(seed);
  Interleaved program;
  const int steps = 6 + static_cast<int>(random() % 6);
  add_training(program, 0, steps, static_cast<std::uint32_t>(random() % 2), seed);
  const std::uint32_t threads = 1 + static_cast<std::uint32_t>(random() % 3);
  for (std::uint32_t thread = 2; thread < 2 + threads; ++thread) {
    const int every = 1 + static_cast<int>(random() % 2);
    const double jitter = between(5, 600, random);
    const std::uint64_t count = 1 + random() % 5;
    std::vector<std::tuple<double, double, std::uint64_t, std::uint32_t>> calls;  // begin, life, size, who frees
    for (std::uint64_t i = 0; i < count; ++i) {
      calls.emplace_back(between(0, 900, random), between(1, 1500, random), random() % (4 * kMiB) + 1,
                         random() % 2 == 0 ? thread : 0);
    }
    std::sort(calls.begin(), calls.end());
    for (int step = 0; step < steps; step += every) {
      for (const auto& [begin, life, size, owner] : calls) {
        const double made = step * kStep + begin + between(0, jitter, random);
        program.free(made + 2 * jitter + life, owner, program.alloc(made, thread, size));
      }
    }
  }
  const plan::Problem problem = program.problem();
  const plan::PlannedDevice planned = plan_and_check(problem);
  CHECK(planned.report.period > 0);
  CHECK(planned.report.without_slot <= problem.requests.size() - count_of(problem, 0));
  CHECK(static_cast<double>(planned.plan.physical_bytes) < 1.1 * static_cast<double>(peak_live_bytes(problem)));
}

TEST_CASE("in another order, what lived together lives together", "[threads]") {
  Random random(GENERATE(range(1U, 31U)));
  plan::Problem problem;
  problem.repeats = true;
  constexpr std::size_t kCount = 60;
  for (std::size_t i = 0; i < kCount; ++i) {
    plan::Request& request = problem.requests.emplace_back();
    request.id = i;
    request.until = random() % 8 == 0 ? plan::kNever : std::min<std::uint64_t>(kCount, i + 1 + random() % 12);
  }
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < kCount; ++i) {
    if (random() % 5 != 0) order.push_back(i);
  }
  for (std::size_t i = 0; i + 1 < order.size(); ++i) {  // not far from where it was
    std::swap(order[i], order[std::min(order.size() - 1, i + random() % 6)]);
  }
  const plan::Problem other = plan::reorder(problem, order);
  REQUIRE(other.requests.size() == order.size());
  const auto together = [](std::size_t a, std::uint64_t a_end, std::size_t b, std::uint64_t b_end) {
    return std::max(a, b) < std::min(a_end, b_end);
  };
  for (std::size_t a = 0; a < order.size(); ++a) {
    CHECK(other.requests[a].id == order[a]);
    CHECK((other.requests[a].until == plan::kNever) == (problem.requests[order[a]].until == plan::kNever));
    for (std::size_t b = 0; b < a; ++b) {
      if (!together(order[a], problem.requests[order[a]].until, order[b], problem.requests[order[b]].until)) continue;
      CHECK(together(a, other.requests[a].until, b, other.requests[b].until));
    }
  }
}

TEST_CASE("in its own order a run stays as it is", "[threads]") {
  const plan::Problem problem = plan::find_lifetimes(training_trace(3, 4, 2)).devices.at(0);
  std::vector<std::size_t> order(problem.requests.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  const plan::Problem same = plan::reorder(problem, order);
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (same.requests[i].until != problem.requests[i].until || same.requests[i].upper != problem.requests[i].upper) {
      FAIL("request " << i << " lives until " << same.requests[i].until << ", not " << problem.requests[i].until);
    }
  }
}
