// SPDX-License-Identifier: Apache-2.0
// What a program without a plan would gain if it were planned while it runs: plays recorded runs through the dynamic
// sub-allocator (plan/online) without a device, plans the steps that follow as soon as the requests so far repeat, and
// waits whether further requests are those of the plan. At the beginning of a step, idle memory is then given back and
// the plan's memory is created. From there on a request takes its slot if it has the slot's size and the slot is free,
// else it is served without the plan. The library does not do this. Prints two lines for each device, and is not a
// test.
//
//     plan_while_running [--first N] [--confirm PERCENT] [--between US] TRACE...
//
// A TRACE may be a CSV of requests. All streams are treated as one. The requests are searched for steps after the first
// N of them, and again whenever there are half as many more. --confirm: how many further requests must be those of the
// plan, as a share of the requests so far.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plan/planner.h"
#include "plan/simulate/null_backend.h"
#include "plan/simulate/simulate.h"
#include "plan/steps/steady_state.h"
#include "tests/bench/problems.h"

using namespace stalloc;

namespace {

constexpr std::uint64_t kPage = std::uint64_t{2} << 20;
constexpr plan::StreamIndex kStream = 1;
constexpr std::size_t kFewestRepetitions = 3;      // of a step, before it is planned
constexpr std::size_t kRequestsPerMismatch = 100;  // a plan is confirmed if no more requests differ from its slots

// The steps of a run that are planned. The first planned step begins at request `begin`.
struct PlannedSteps {
  plan::DevicePlan plan;
  std::size_t begin = 0;
};

// The requests [begin, end) as a problem of their own; those that are freed later are not freed in it.
plan::Problem part_of(const plan::Problem& problem, std::size_t begin, std::size_t end) {
  plan::Problem part;
  part.device = problem.device;
  part.granularity = kPage;
  part.repeats = true;
  part.requests.assign(problem.requests.begin() + static_cast<std::ptrdiff_t>(begin),
                       problem.requests.begin() + static_cast<std::ptrdiff_t>(end));
  for (plan::Request& request : part.requests) {
    request.until = request.until > end ? plan::kNever : request.until - begin;
  }
  return part;
}

// Plans the steps after the first `seen` requests; nothing if these do not repeat.
std::optional<PlannedSteps> plan_steps(const plan::Problem& problem, std::size_t seen) {
  const plan::SteadyState steady = plan::find_steady_state(part_of(problem, 0, seen));
  if (steady.period == 0 || steady.catch_all || steady.repetitions < kFewestRepetitions) return std::nullopt;
  std::size_t begin = steady.begin + (steady.repetitions - kFewestRepetitions) * steady.period;
  auto made = plan::plan_device(part_of(problem, begin, seen), {});
  if (made.ok() && made.value.plan.prologue > 0) {
    // Again, from where the planner begins the body: a prologue would take memory, and its requests do not come again.
    begin += made.value.plan.prologue;
    made = plan::plan_device(part_of(problem, begin, seen), {});
  }
  if (!made.ok() || made.value.plan.body == 0) return std::nullopt;
  plan::DevicePlan& plan = made.value.plan;
  begin += plan.prologue;
  const std::size_t steps_seen = (seen - begin + plan.body - 1) / plan.body;  // the last one may not be whole
  return PlannedSteps{std::move(plan), begin + steps_seen * plan.body};
}

// Whether at least `count` further requests, in whole steps, are those of the plan. `steps` then begins after them.
bool confirm(const plan::Problem& problem, std::size_t count, PlannedSteps* steps) {
  const plan::DevicePlan& plan = steps->plan;
  const std::size_t end = steps->begin + (count + plan.body - 1) / plan.body * plan.body;
  if (end >= problem.requests.size()) return false;
  std::size_t mismatches = 0;
  for (std::size_t i = steps->begin; i < end; ++i) {
    const plan::Slot& slot = plan.slots[plan.prologue + (i - steps->begin) % plan.body];
    const std::uint64_t planned = plan::round_up(slot.size, plan::kUnitBytes);
    if (plan::round_up(problem.requests[i].size, plan::kUnitBytes) != planned) ++mismatches;
  }
  if (mismatches > (end - steps->begin) / kRequestsPerMismatch) return false;
  steps->begin = end;
  return true;
}

// The physical ranges of each slot of a plan's body.
std::vector<std::vector<plan::Range>> body_ranges(const plan::DevicePlan& plan) {
  std::vector<std::uint64_t> starts;
  std::uint64_t end = 0;
  for (const std::uint64_t bytes : plan.handles) {
    starts.push_back(end);
    end += bytes;
  }
  std::vector<plan::StitchedView> views;
  for (const plan::View& view : plan.views) {
    std::vector<plan::Range> pieces;
    for (const std::uint32_t handle : view.handles) {
      pieces.push_back({starts[handle], starts[handle] + plan.handles[handle]});
    }
    views.emplace_back(pieces);
  }
  std::vector<std::vector<plan::Range>> ranges(plan.body);
  for (std::size_t i = 0; i < plan.body; ++i) {
    const plan::Slot& slot = plan.slots[plan.prologue + i];
    const std::uint64_t bytes = plan::round_up(slot.size, plan::kUnitBytes);
    if (slot.kind != plan::SlotKind::PassThrough && bytes > 0) {
      views[slot.view].translate(slot.offset, bytes, ranges[i]);
    }
  }
  return ranges;
}

struct Played {
  std::uint64_t peak_held = 0;   // bytes, in the whole run
  std::uint64_t later_held = 0;  // bytes, at most from the first planned step on
  std::uint64_t later_mapped = 0;
  std::uint64_t created = 0;    // handles of the plan, created and mapped, with those that its views map
  std::uint64_t left_free = 0;  // bytes that were free then in handles without the plan, which stayed
  std::size_t later_requests = 0;
  std::size_t in_slots = 0;
};

class Run {
 public:
  Run(const plan::Problem& problem, std::uint64_t between_frees)
      : requests_(problem.requests),
        allocator_(plan::simulation_options(kPage, plan::peak_live_bytes(problem), {}, plan::kDefaultCrossStream),
                   plan::NullBackend(between_frees, plan::NullBackend::kUnlimited)),
        places_(requests_.size()),
        slots_(requests_.size(), kNoSlot) {}

  // Plays the run; from request `later` on, figures are also kept apart. With `steps`, their plan is followed then.
  Played play(std::size_t later, const PlannedSteps* steps) {
    Played played;
    std::vector<std::vector<std::size_t>> ends(requests_.size() + 1);
    std::uint64_t mapped_before = 0;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      for (const std::size_t ended : ends[i]) free(ended);
      if (i == later) {
        if (steps != nullptr) follow(steps->plan, &played);
        mapped_before = mapped();
      }
      if (const std::uint64_t bytes = requests_[i].bytes(); bytes > 0) {
        if (steps != nullptr && i >= later && take_slot(i, (i - later) % steps->plan.body, steps->plan)) {
          ++played.in_slots;
        } else {
          places_[i] = *allocator_.allocate(bytes, kStream);
        }
        if (requests_[i].until <= requests_.size()) ends[requests_[i].until].push_back(i);
        const std::uint64_t held = allocator_.placement().physical_bytes() + plan_bytes_;
        played.peak_held = std::max(played.peak_held, held);
        if (i >= later) {
          played.later_held = std::max(played.later_held, held);
          ++played.later_requests;
        }
      }
    }
    played.later_mapped = mapped() - mapped_before;
    return played;
  }

 private:
  static constexpr std::size_t kNoSlot = ~std::size_t{0};

  [[nodiscard]] std::uint64_t mapped() const { return allocator_.counts().handles + allocator_.counts().mapped; }

  // Exchanges idle memory for that of the plan.
  void follow(const plan::DevicePlan& plan, Played* played) {
    allocator_.complete_deferred_free();
    allocator_.backend().poll_frees();
    allocator_.memory().unmap_idle_views();
    allocator_.memory().release_idle(0, false);
    ranges_ = body_ranges(plan);
    plan_bytes_ = plan.physical_bytes;
    plan_free_.add({0, plan.physical_bytes});
    for (const plan::View& view : plan.views) played->created += view.handles.size();
    played->left_free = allocator_.placement().free_bytes();
  }

  bool take_slot(std::size_t request, std::size_t slot, const plan::DevicePlan& plan) {
    const std::uint64_t bytes = plan::round_up(plan.slots[plan.prologue + slot].size, plan::kUnitBytes);
    const std::vector<plan::Range>& ranges = ranges_[slot];
    const auto is_free = [&](plan::Range range) { return plan_free_.contains(range); };
    if (ranges.empty() || bytes != requests_[request].bytes()) return false;
    if (!std::all_of(ranges.begin(), ranges.end(), is_free)) return false;
    for (const plan::Range& range : ranges) plan_free_.subtract(range);
    slots_[request] = slot;
    return true;
  }

  void free(std::size_t request) {
    if (slots_[request] == kNoSlot) {
      allocator_.defer_free(places_[request], requests_[request].bytes(), kStream);
    } else {
      for (const plan::Range& range : ranges_[slots_[request]]) plan_free_.add(range);
    }
  }

  const std::vector<plan::Request>& requests_;
  plan::SimulatedAllocator allocator_;
  std::vector<plan::Place> places_;
  std::vector<std::size_t> slots_;
  std::vector<std::vector<plan::Range>> ranges_;
  plan::FreeSpace plan_free_;
  std::uint64_t plan_bytes_ = 0;
};

void play(const plan::Problem& problem, std::size_t first, std::size_t confirm_percent, std::uint64_t between_frees) {
  std::optional<PlannedSteps> steps;
  std::size_t searches = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (std::size_t seen = first; !steps && seen < problem.requests.size(); seen += seen / 2) {
    steps = plan_steps(problem, seen);
    if (steps && !confirm(problem, seen * confirm_percent / 100, &*steps)) steps.reset();
    ++searches;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (!steps) {
    std::printf("  nothing was planned in %zu searches, %.2f s\n", searches, seconds);
    return;
  }
  const auto peak = static_cast<double>(plan::peak_live_bytes(problem));
  const Played without = Run(problem, between_frees).play(steps->begin, nullptr);
  const Played with = Run(problem, between_frees).play(steps->begin, &*steps);
  std::printf(
      "  planned at request %zu of %zu, a step of %u, after %zu searches and plans in %.2f s; %llu handles mapped, and "
      "%.4f of live free in the handles that stayed\n",
      steps->begin, problem.requests.size(), steps->plan.body, searches, seconds,
      static_cast<unsigned long long>(with.created), static_cast<double>(with.left_free) / peak);
  std::printf(
      "  from then on: held / live %.4f instead of %.4f (in the whole run %.4f), handles mapped %llu instead of %llu, "
      "%.2f %% of the requests in slots\n",
      static_cast<double>(with.later_held) / peak, static_cast<double>(without.later_held) / peak,
      static_cast<double>(with.peak_held) / peak, static_cast<unsigned long long>(with.later_mapped),
      static_cast<unsigned long long>(without.later_mapped),
      100.0 * static_cast<double>(with.in_slots) / static_cast<double>(with.later_requests));
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> traces;
  std::size_t first = 4096;
  std::size_t confirm_percent = 50;
  std::uint64_t microseconds = 0;
  CLI::App app("Shows what planning a program's steps while it runs would gain, without a device.");
  app.add_option("TRACE", traces, "recorded runs, or CSVs of requests")->required()->check(CLI::ExistingFile);
  app.add_option("--first", first, "requests before steps are searched for first")->check(CLI::Range(100, 100'000'000));
  app.add_option("--confirm", confirm_percent, "percent of the requests so far that must be those of the plan after it")
      ->check(CLI::Range(0, 1000));
  app.add_option("--between", microseconds, "microseconds from one free to the next; 0: mapping takes no time")
      ->check(CLI::Range(0, 1'000'000));
  CLI11_PARSE(app, argc, argv);
  for (const std::string& path : traces) {
    for (const plan::Problem& problem : bench::read_problems(path)) {
      std::printf("%s, device %u\n", path.substr(path.rfind('/') + 1).c_str(), problem.device);
      play(problem, first, confirm_percent, microseconds * 1000);
    }
  }
}
