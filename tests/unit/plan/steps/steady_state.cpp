// SPDX-License-Identifier: Apache-2.0
// Repetitions: found exactly, whole steps rather than microbatches, cut where little lives across.
#include "plan/steps/steady_state.h"

#include <algorithm>
#include <iterator>
#include <random>

#include "catch.h"
#include "plan/lifetimes.h"
#include "plan/steps/runs.h"
#include "samples.h"
#include "tests/unit/seeds.h"

using namespace stalloc;
using plan::Run;

namespace {

bool repeats(const std::vector<std::uint32_t>& tokens, std::size_t begin, std::size_t end, std::size_t period) {
  for (std::size_t i = begin; i + period < end; ++i) {
    if (tokens[i] != tokens[i + period]) return false;
  }
  return true;
}

// Every maximal run, straight from the definition.
std::vector<Run> all_runs(const std::vector<std::uint32_t>& tokens) {
  std::vector<Run> runs;
  for (std::size_t period = 1; 2 * period <= tokens.size(); ++period) {
    for (std::size_t begin = 0; begin + 2 * period <= tokens.size(); ++begin) {
      if (begin > 0 && tokens[begin - 1] == tokens[begin - 1 + period]) continue;
      std::size_t end = begin + period;
      while (end < tokens.size() && tokens[end] == tokens[end - period]) ++end;
      if (end - begin < 2 * period) continue;
      bool smallest = true;
      for (std::size_t p = 1; p < period; ++p) smallest = smallest && !repeats(tokens, begin, end, p);
      if (smallest) runs.push_back({begin, end, period});
    }
  }
  return runs;
}

auto key(const Run& run) { return std::tuple(run.begin - run.end, run.period, run.begin); }

// Sizes as given, each request freed by the next one except for those listed as (request, requests it lives).
plan::Problem problem_of(const std::vector<std::uint32_t>& tokens,
                         const std::vector<std::pair<std::size_t, std::uint64_t>>& lives = {}) {
  plan::Problem problem;
  problem.repeats = true;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    plan::Request& request = problem.requests.emplace_back();
    request.id = request.lower = i;
    request.size = std::uint64_t{tokens[i]} * 1000;
    request.until = i + 1;
  }
  for (const auto& [request, life] : lives) {
    problem.requests[request].until = life == plan::kNever ? life : request + life;
  }
  for (plan::Request& request : problem.requests) request.upper = std::min<std::uint64_t>(request.until, tokens.size());
  return problem;
}

std::vector<std::uint32_t> repeat(const std::vector<std::uint32_t>& body, int times) {
  std::vector<std::uint32_t> tokens;
  for (int i = 0; i < times; ++i) std::copy(body.begin(), body.end(), std::back_inserter(tokens));
  return tokens;
}

std::vector<std::uint32_t> join(std::initializer_list<std::vector<std::uint32_t>> parts) {
  std::vector<std::uint32_t> tokens;
  for (const auto& part : parts) std::copy(part.begin(), part.end(), std::back_inserter(tokens));
  return tokens;
}

}  // namespace

TEST_CASE("runs of random sequences are exactly those of the definition") {
  std::mt19937 random(1);
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::uint32_t> tokens(1 + random() % 24);
    const std::uint32_t letters = 1 + random() % 3;
    for (std::uint32_t& token : tokens) token = random() % letters;
    auto expected = all_runs(tokens);
    std::sort(expected.begin(), expected.end(), [](const Run& a, const Run& b) { return key(a) < key(b); });
    const auto found = plan::find_runs(tokens, 0);
    REQUIRE(found.size() == expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) REQUIRE(key(found[i]) == key(expected[i]));
  }
}

TEST_CASE("the body is a step, not a microbatch inside it") {
  const std::vector<std::uint32_t> microbatch = {1, 2, 3, 4, 3, 2};
  const std::vector<std::uint32_t> step = join({repeat(microbatch, 16), {9, 8}});
  const auto tokens = join({{5, 6, 7}, repeat(step, 2), {1, 2, 11}});
  const auto steady = plan::find_steady_state(problem_of(tokens));
  CHECK(steady.period == step.size());
  CHECK(steady.repetitions == 2);
  CHECK(steady.begin >= 3);
  CHECK(steady.end() <= 3 + 2 * step.size() + 2);
}

TEST_CASE("one step with microbatches alone repeats by the microbatch") {
  const auto steady = plan::find_steady_state(problem_of(join({{5, 6, 7}, repeat({1, 2, 3, 4}, 8), {9, 8}})));
  CHECK(steady.period == 4);
  CHECK(steady.repetitions == 8);
}

TEST_CASE("logging or evaluation every few steps is a part of a longer period") {
  const std::vector<std::uint32_t> step = join({repeat({1, 2, 3, 4, 3, 2}, 4), {9, 8}});
  const std::vector<std::uint32_t> logging = {70, 71};
  const std::vector<std::uint32_t> evaluation = repeat({1, 2, 60, 2, 61}, 7);
  for (const auto& extra : {logging, evaluation}) {
    for (const int every : {2, 3, 5}) {
      // Seen twice and a step more: from some phase on, the run that repeats begins and ends inside its period.
      const auto round = join({repeat(step, every), extra});
      const auto tokens = join({{5, 6, 7}, repeat(round, 2), step});
      const auto steady = plan::find_steady_state(problem_of(tokens));
      CHECK(steady.period == round.size());
      CHECK(steady.repetitions == 2);
      CHECK(steady.begin >= 3);
      CHECK(steady.end() <= tokens.size());
    }
  }
}

TEST_CASE("logging and evaluation at different distances repeat when both have") {
  const std::vector<std::uint32_t> step = {1, 2, 3, 4, 5, 4, 3};
  std::vector<std::uint32_t> tokens;
  for (int i = 1; i <= 24; ++i) {
    tokens = join(
        {tokens, step, i % 2 == 0 ? repeat({70}, 1) : repeat({}, 0), i % 3 == 0 ? repeat({60, 61}, 1) : repeat({}, 0)});
  }
  const auto steady = plan::find_steady_state(problem_of(tokens));
  CHECK(steady.period == 6 * step.size() + 3 + 2 * 2);
  CHECK(steady.repetitions == 4);
}

TEST_CASE("one evaluation in a recording is none of the body's business") {
  const std::vector<std::uint32_t> step = {1, 2, 3, 4, 5, 4, 3};
  const std::vector<std::uint32_t> evaluation = repeat({1, 60, 61}, 5);
  const auto steady = plan::find_steady_state(problem_of(join({{8, 9}, repeat(step, 6), evaluation, repeat(step, 3)})));
  CHECK(steady.period == step.size());
  CHECK(steady.repetitions >= 5);
  CHECK(steady.end() <= 2 + 6 * step.size() + 1);  // the evaluation begins as a step does
}

TEST_CASE("warm-up steps that differ from each other and from the rest come before the body") {
  const std::vector<std::uint32_t> step = {1, 2, 3, 4, 5, 4, 3};
  const std::vector<std::uint32_t> first = {1, 2, 3, 4, 5, 20, 21, 4, 3};      // makes the optimizer's states
  const std::vector<std::uint32_t> second = {1, 2, 3, 30, 4, 5, 4, 3};         // tunes its kernels
  const std::vector<std::uint32_t> third = {1, 2, 3, 30, 31, 4, 5, 40, 4, 3};  // and others
  const auto tokens = join({{8, 9, 8, 9, 7}, first, second, third, repeat(step, 5), {50}});
  const auto steady = plan::find_steady_state(problem_of(tokens));
  CHECK(steady.period == step.size());
  CHECK(steady.repetitions == 5);
  CHECK(steady.begin >= 5 + first.size() + second.size() + third.size() - 2);
}

TEST_CASE("no repetition, no body") {
  CHECK(plan::find_steady_state(problem_of({})).period == 0);
  CHECK(plan::find_steady_state(problem_of({1})).period == 0);
  CHECK(plan::find_steady_state(problem_of({1, 2, 3, 4, 5, 6})).period == 0);
  // A few equal requests in a long irregular run are no steady state.
  std::vector<std::uint32_t> tokens(100);
  for (std::uint32_t i = 0; i < 100; ++i) tokens[i] = i < 10 ? 1 : i;
  CHECK(plan::find_steady_state(problem_of(tokens)).period == 0);
}

TEST_CASE("a CSV does not repeat even if it does") {
  auto problem = problem_of(repeat({1, 2, 3}, 5));
  problem.repeats = false;
  CHECK(plan::find_steady_state(problem).period == 0);
}

TEST_CASE("streams tell requests of one size apart") {
  auto problem = problem_of(repeat({1, 1}, 4));
  for (std::size_t i = 0; i < 8; ++i) problem.requests[i].stream = i % 2;
  CHECK(plan::find_steady_state(problem).period == 2);
}

TEST_CASE("the cut is where the fewest bytes live across it") {
  // Request 1 of every step is large and lives until request 4.
  std::vector<std::pair<std::size_t, std::uint64_t>> lives;
  for (std::size_t step = 0; step < 4; ++step) lives.emplace_back(step * 6 + 1, 3);
  for (std::size_t step = 0; step < 4; ++step) lives.emplace_back(step * 6 + 5, 2);  // a small one across the end
  const auto steady = plan::find_steady_state(problem_of(repeat({1, 50, 2, 3, 4, 5}, 4), lives));
  CHECK(steady.period == 6);
  CHECK(steady.begin == 0 + 1);  // before the large one, behind the small one's end
}

TEST_CASE("a request that outlives its step makes the body longer") {
  const std::size_t period = 5;
  std::vector<std::pair<std::size_t, std::uint64_t>> lives;
  for (std::size_t step = 0; step < 8; ++step) lives.emplace_back(step * period + 2, period + 2);
  const auto steady = plan::find_steady_state(problem_of(repeat({1, 2, 3, 4, 5}, 8), lives));
  CHECK(steady.unrolled == 2);
  CHECK(steady.period == 2 * period);
  CHECK(std::count(steady.lives.begin(), steady.lives.end(), period + 2) == 2);
}

TEST_CASE("a small leak in every step is no obstacle; a large one is no steady state") {
  for (const std::uint32_t size : {1u, 100u}) {
    const std::size_t period = 5;
    std::vector<std::pair<std::size_t, std::uint64_t>> lives;
    for (std::size_t step = 0; step < 8; ++step) lives.emplace_back(step * period + 2, plan::kNever);
    const auto steady = plan::find_steady_state(problem_of(repeat({10, 20, size, 40, 50}, 8), lives));
    if (size == 1) {
      REQUIRE(steady.period == period);
      CHECK(std::count(steady.lives.begin(), steady.lives.end(), plan::kNever) == 1);
    } else {
      CHECK(steady.period == 0);
    }
  }
}

TEST_CASE("sizes that repeat twice, and of which more than a quarter leak, repeat by chance") {
  const std::size_t leaks = GENERATE(1, 2, 3, 4);
  const std::size_t repetitions = GENERATE(2, 3, 8);
  const std::vector<std::uint32_t> step = {500, 600, 700, 800, 1, 2, 3, 4};
  std::vector<std::pair<std::size_t, std::uint64_t>> lives;
  for (std::size_t repetition = 0; repetition < repetitions; ++repetition) {
    for (std::size_t leak = 0; leak < leaks; ++leak) {
      lives.emplace_back(repetition * step.size() + 4 + leak, plan::kNever);
    }
  }
  const auto steady = plan::find_steady_state(problem_of(repeat(step, repetitions), lives));
  CHECK(steady.period == (leaks <= 2 || repetitions > 2 ? step.size() : 0));
}

TEST_CASE("what only the first repetition makes to stay is no leak of the others") {
  const std::size_t period = 5;
  const auto tokens = repeat({10, 20, 100, 40, 50}, 8);
  const auto steady = plan::find_steady_state(problem_of(tokens, {{2, plan::kNever}}));
  REQUIRE(steady.period == period);
  CHECK(steady.begin == 3);
  CHECK(std::count(steady.lives.begin(), steady.lives.end(), plan::kNever) == 0);

  // Not where fewer than two repetitions would be left: then there is a leak.
  const auto twice = repeat({1, 20, 30, 40, 50}, 2);
  const auto short_one = plan::find_steady_state(problem_of(twice, {{0, plan::kNever}}));
  CHECK(std::count(short_one.lives.begin(), short_one.lives.end(), plan::kNever) == 1);
}

TEST_CASE("lives are the longest over all repetitions") {
  std::vector<std::pair<std::size_t, std::uint64_t>> lives = {{0, 1}, {5, 3}, {10, 2}, {15, 4}};
  const auto steady = plan::find_steady_state(problem_of(repeat({1, 2, 3, 4, 5}, 4), lives));
  REQUIRE(steady.period == 5);
  CHECK(steady.lives[(5 - steady.begin % 5) % 5] == 4);
}

TEST_CASE("training loops repeat by the step, whatever their size") {
  for (const std::uint64_t seed : seeds(20)) {
    const std::size_t steps = 3 + seed % 3;
    const std::size_t microbatches = 1 + seed % 4;
    const auto trace = test::training_trace(seed, static_cast<int>(steps), static_cast<int>(microbatches));
    const auto lifetimes = plan::find_lifetimes(trace);
    const auto steady = plan::find_steady_state(lifetimes.devices[0]);
    // With one microbatch a step, the result of a step is held until the next one is made: two steps alternate.
    CHECK(steady.unrolled == (microbatches == 1 ? 2 : 1));
    CHECK(steady.repetitions == steps / steady.unrolled);
    const auto& requests = lifetimes.devices[0].requests;
    for (std::size_t i = steady.begin; i + steady.period < steady.end(); ++i) {
      REQUIRE(requests[i].bytes() == requests[i + steady.period].bytes());
    }
  }
}
