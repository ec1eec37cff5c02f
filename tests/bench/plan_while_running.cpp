// SPDX-License-Identifier: Apache-2.0
// What planning a program's steps while it runs (plan/running) gains: plays recorded runs through the online allocator
// without a device, with it and without. Prints two lines for each device, and is not a test.
//
//     plan_while_running [--between US] TRACE...
//
// A TRACE may be a CSV of requests. All streams are treated as one.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "plan/online/online_policy.h"
#include "plan/running/step_server.h"
#include "plan/simulate/null_backend.h"
#include "plan/simulate/simulate.h"
#include "tests/bench/problems.h"

using namespace stalloc;

namespace {

constexpr std::uint64_t kPage = std::uint64_t{2} << 20;
constexpr plan::StreamIndex kStream = 1;

// After each request.
struct Moment {
  std::uint64_t held = 0;    // bytes
  std::uint64_t mapped = 0;  // handles so far
};

struct TakenUp {
  std::size_t request = 0;
  std::size_t step = 0;  // large requests
};

struct Played {
  std::vector<Moment> moments;
  std::vector<TakenUp> taken_up;
  std::uint64_t in_slots = 0;
  double seconds = 0;
};

Played play(const plan::Problem& problem, std::uint64_t between_frees, const plan::OnlinePolicy& policy) {
  const std::vector<plan::Request>& requests = problem.requests;
  plan::SimulatedAllocator allocator(
      plan::simulation_options(kPage, plan::peak_live_bytes(problem), policy, plan::kDefaultCrossStream),
      plan::NullBackend(between_frees, plan::NullBackend::kUnlimited));
  plan::StepServer<plan::SimulatedAllocator> steps(allocator);
  std::vector<plan::Place> places(requests.size());
  std::vector<std::vector<std::size_t>> ends(requests.size() + 1);
  Played played;
  const auto begin = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    for (const std::size_t ended : ends[i]) {
      const std::uint64_t bytes = requests[ended].bytes();
      if (steps.may_have_slot(bytes)) steps.freed(ended, kStream);
      if (steps.takes_each_request_of(bytes)) {
        allocator.free(places[ended], bytes, kStream);
      } else {
        allocator.defer_free(places[ended], bytes, kStream);
      }
    }
    if (const std::uint64_t bytes = requests[i].bytes(); bytes > 0) {
      std::optional<plan::Place> place;
      if (steps.may_have_slot(bytes)) {
        place = steps.serve(allocator, i, bytes, kStream);
      } else {
        steps.keep_plan_bytes_from(allocator, bytes);
      }
      if (place) ++played.in_slots;
      places[i] = place ? *place : *allocator.allocate(bytes, kStream);
      if (requests[i].until <= requests.size()) ends[requests[i].until].push_back(i);
      if (const auto taken_up = steps.taken_up()) played.taken_up.push_back({i, taken_up->requests});
    }
    played.moments.push_back(
        {allocator.placement().physical_bytes(), allocator.counts().handles + allocator.counts().mapped});
  }
  played.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return played;
}

std::uint64_t most_held(const Played& played, std::size_t from) {
  std::uint64_t most = 0;
  for (std::size_t i = from; i < played.moments.size(); ++i) most = std::max(most, played.moments[i].held);
  return most;
}

std::uint64_t mapped(const Played& played, std::size_t from) {
  return played.moments.back().mapped - played.moments[from].mapped;
}

void compare(const plan::Problem& problem, std::uint64_t between_frees) {
  plan::OnlinePolicy off;
  off.planned_repetitions = std::uint64_t{1} << 63;
  const Played with = play(problem, between_frees, {});
  const Played without = play(problem, between_frees, off);
  const auto peak = static_cast<double>(plan::peak_live_bytes(problem));
  const auto per_live = [peak](std::uint64_t bytes) { return static_cast<double>(bytes) / peak; };
  std::printf("  held / live %.4f, without %.4f; %.2f s, without %.2f s\n", per_live(most_held(with, 0)),
              per_live(most_held(without, 0)), with.seconds, without.seconds);
  for (const TakenUp& plan : with.taken_up) {
    std::printf(
        "  from request %zu of %zu on, a step of %zu large ones: held / live %.4f, without %.4f; handles mapped %llu, "
        "without %llu; %llu requests in slots\n",
        plan.request, problem.requests.size(), plan.step, per_live(most_held(with, plan.request)),
        per_live(most_held(without, plan.request)), static_cast<unsigned long long>(mapped(with, plan.request)),
        static_cast<unsigned long long>(mapped(without, plan.request)), static_cast<unsigned long long>(with.in_slots));
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> traces;
  std::uint64_t microseconds = 0;
  CLI::App app("Shows what planning a program's steps while it runs gains, without a device.");
  app.add_option("TRACE", traces, "recorded runs, or CSVs of requests")->required()->check(CLI::ExistingFile);
  app.add_option("--between", microseconds, "microseconds from one free to the next; 0: mapping takes no time")
      ->check(CLI::Range(0, 1'000'000));
  CLI11_PARSE(app, argc, argv);
  for (const std::string& path : traces) {
    for (const plan::Problem& problem : bench::read_problems(path)) {
      std::printf("%s, device %u\n", path.substr(path.rfind('/') + 1).c_str(), problem.device);
      compare(problem, microseconds * 1000);
    }
  }
}
