// SPDX-License-Identifier: Apache-2.0
#include "plan/running/step_planner.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "plan/planner.h"
#include "plan/running/repetition.h"

namespace stalloc::plan {
namespace {

constexpr std::size_t kMostLogged = std::size_t{1} << 18;  // requests; with their frees they take 9 MiB
constexpr std::size_t kFewestRepetitions = 3;              // for a step to be found
constexpr std::size_t kPlannedRepetitions = 4;             // the latest ones, of which the plan is made
constexpr std::size_t kLeastShare = 4;                     // the repetitions found are at least (the log / this)
constexpr std::size_t kRequestsPerMismatch = 100;          // with more than one mismatch in so many, a step has changed
constexpr std::size_t kMostQuiet = 16;                     // repetitions without mapping before logging stops
constexpr std::size_t kMostOffers = 16;                    // of a plan that is not taken up
constexpr std::uint64_t kLiveShareAtBegin = 16;            // (the plan's memory / this) more may live where it begins
constexpr std::uint64_t kMostExamined = 2'000'000;         // ranges, in planning once (PlanOptions)
constexpr std::size_t kLatestFirstSearch = kMostLogged / 4;  // requests before the first search, after useless plans

// Leaves only the slots of the body.
void keep_body(DevicePlan* plan) {
  const auto begin = plan->slots.begin() + plan->prologue;
  plan->slots.erase(begin + plan->body, plan->slots.end());
  plan->slots.erase(plan->slots.begin(), plan->slots.begin() + plan->prologue);
  for (std::vector<std::uint32_t>* const list : {&plan->varying, &plan->unplaced}) {
    std::erase_if(*list,
                  [plan](std::uint32_t slot) { return slot < plan->prologue || slot - plan->prologue >= plan->body; });
    for (std::uint32_t& slot : *list) slot -= plan->prologue;
  }
  plan->waits.clear();
  plan->prologue = 0;
}

// The bytes that live when each request of the body is made, in a program that repeats it.
std::vector<std::uint64_t> live_bytes_at_requests(const DevicePlan& plan) {
  const std::size_t requests = plan.slots.size();
  std::vector<std::uint64_t> live(2 * requests + 1);  // first the differences, of two repetitions
  for (std::size_t i = 0; i < requests; ++i) {
    const Slot& slot = plan.slots[i];
    if (slot.kind == SlotKind::PassThrough || slot.upper == kNever) continue;
    live[i + 1] += slot.size;
    live[i + std::min<std::size_t>(slot.upper - slot.lower, requests)] -= slot.size;  // may be less than 0 for a while
  }
  std::partial_sum(live.begin(), live.end(), live.begin());
  for (std::size_t i = 0; i < requests; ++i) live[i] += live[i + requests];
  live.resize(requests);
  return live;
}

// Makes the body begin with its `first`th request.
void rotate_body(DevicePlan* plan, std::size_t first) {
  std::rotate(plan->slots.begin(), plan->slots.begin() + static_cast<std::ptrdiff_t>(first), plan->slots.end());
  const std::size_t requests = plan->slots.size();
  for (std::vector<std::uint32_t>* const list : {&plan->varying, &plan->unplaced}) {
    for (std::uint32_t& slot : *list) slot = static_cast<std::uint32_t>((slot + requests - first) % requests);
    std::sort(list->begin(), list->end());
  }
}

// How many handles are mapped to take up a plan.
std::uint64_t handles_mapped_for(const DevicePlan& plan) {
  std::uint64_t handles = 0;
  for (const View& view : plan.views) handles += view.handles.size();
  return handles;
}

}  // namespace

StepPlanner::StepPlanner(std::uint64_t page, const OnlinePolicy& policy)
    : page_(page),
      repetitions_(std::max<std::uint64_t>(policy.planned_repetitions, kPlannedRepetitions + 1)),
      held_per_coarse_handle_(policy.held_per_coarse_handle) {}

void StepPlanner::restart() noexcept {
  log_.clear();
  step_.reset();
  next_search_ = std::min(kFirstSearch << std::min<std::size_t>(useless_, 16), kLatestFirstSearch);
  offers_ = false;
  sleeps_ = false;
}

// The next plan is likely to be useless, too.
void StepPlanner::give_up() noexcept {
  ++useless_;
  restart();
}

// Stops logging until memory is mapped again.
void StepPlanner::sleep(std::uint64_t mapped) noexcept {
  restart();
  mapped_at_search_ = mapped;
  sleeps_ = true;
}

// Called at a request, which is the last in the log, if there is a step or it is time to search.
void StepPlanner::advance(std::uint64_t mapped) {
  offers_ = false;
  if (step_ && !continues()) {
    if (step_->plan) return give_up();
    step_.reset();
  }
  if (step_ && log_.size() - 1 == step_->begin + step_->period) begin_repetition(mapped);
  if (!step_ && log_.size() >= next_search_) search(mapped);
}

void StepPlanner::search(std::uint64_t mapped) {
  const std::size_t seen = log_.size();
  const bool maps = mapped != std::exchange(mapped_at_search_, mapped);
  if (seen >= kMostLogged) return maps ? restart() : sleep(mapped);
  next_search_ = seen + seen / 4;
  if (!maps) return;
  const Repetition found = find_repetition(log_.sizes(), kFewestRepetitions);
  if (found.length < seen / kLeastShare) return;
  step_.emplace(Step{.period = found.period,
                     .begin = seen - found.period,
                     .until = seen + seen / 2,
                     .repetitions = found.length / found.period,
                     .mapped = mapped,
                     .mapped_at_first = mapped});
}

// Whether the latest request is that of the step.
bool StepPlanner::continues() {
  const std::size_t request = log_.size() - 1;
  if (log_.sizes()[request] == log_.sizes()[request - step_->period]) return true;
  return ++step_->mismatches <= step_->period / kRequestsPerMismatch;
}

// Called at the first request of a repetition.
void StepPlanner::begin_repetition(std::uint64_t mapped) {
  step_->begin = log_.size() - 1;
  ++step_->repetitions;
  step_->mismatches = 0;
  const bool maps = mapped != std::exchange(step_->mapped, mapped);
  step_->quiet = maps ? 0 : step_->quiet + 1;
  if (step_->quiet == kMostQuiet) return sleep(mapped);
  if (log_.size() >= kMostLogged) return restart();
  if (!maps || step_->begin < step_->until || step_->repetitions < repetitions_) return;
  if (!step_->plan && !make_plan()) return give_up();
  if (mapped - step_->mapped_at_first < handles_mapped_for(*step_->plan)) return;
  if (log_.size() - 1 != step_->begin) return;
  if (step_->offers++ == kMostOffers) return give_up();
  offers_ = true;
}

// Returns the request of the body with which it is to begin: a plan can only be taken up where idle memory is known to
// be idle, because the program has just waited for its work. Of the requests before which it did so in each of the
// planned repetitions, that is the one at which the fewest bytes live, unless many more live there than where the
// planner begins the body. `begin`: a request in the log with which a repetition begins.
std::size_t StepPlanner::choose_begin(const DevicePlan& plan, std::size_t begin) const {
  const std::vector<std::uint64_t> live = live_bytes_at_requests(plan);
  const auto is_settled = [&](std::size_t request) {
    std::size_t latest = begin + request;
    while (latest + plan.body < log_.size()) latest += plan.body;
    for (std::size_t i = 0; i < kPlannedRepetitions; ++i) {
      if (latest < i * plan.body || !log_.is_settled(latest - i * plan.body)) return false;
    }
    return true;
  };
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < live.size(); ++i) {
    if ((!best || live[i] < live[*best]) && is_settled(i)) best = i;
  }
  return best && live[*best] <= live[0] + plan.physical_bytes / kLiveShareAtBegin ? *best : 0;
}

// Plans the step from its latest repetitions. Its begin may be moved to a later request. False: it cannot be planned.
bool StepPlanner::make_plan() {
  std::size_t begin = step_->begin - kPlannedRepetitions * step_->period;
  Problem problem = log_.problem(begin, page_);
  // The plan's memory is created and mapped at once, which takes time for each handle.
  const std::uint64_t cap = std::max(kDefaultHandleBytes, peak_live_bytes(problem) / held_per_coarse_handle_);
  const PlanOptions options{.handle_cap = std::max(page_, cap), .most_examined = kMostExamined};
  auto made = plan_device(problem, options);
  if (made.ok() && made.value.plan.prologue > 0) {
    // Again, from where the planner begins the body: a prologue would take memory, and its requests do not come again.
    begin += made.value.plan.prologue;
    problem = log_.problem(begin, page_);
    made = plan_device(problem, options);
  }
  if (!made.ok() || made.value.plan.body == 0 || made.value.plan.physical_bytes == 0) return false;
  DevicePlan& plan = step_->plan.emplace(std::move(made.value.plan));
  begin += plan.prologue;
  keep_body(&plan);
  step_->period = plan.body;
  const std::size_t first = choose_begin(plan, begin);
  rotate_body(&plan, first);
  begin += first;
  const std::size_t request = log_.size() - 1;
  while (begin < request) begin += plan.body;
  step_->begin = begin == request ? begin : begin - plan.body;  // the present repetition's
  return true;
}

}  // namespace stalloc::plan
