// SPDX-License-Identifier: Apache-2.0
#include "plan/planner.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "plan/layout/contiguous.h"
#include "plan/layout/handles.h"
#include "plan/layout/layout.h"
#include "plan/layout/ordering.h"
#include "plan/sequence/beginning.h"
#include "plan/steps/steps.h"

namespace stalloc::plan {
namespace {

constexpr std::uint64_t kMostHandles = 1 << 20;
constexpr std::uint64_t kMuchLost = 128;  // a plan that loses more than this part of its peak is tried again

Slot make_slot(const Problem& problem, const SteadyState& steady, const Sequence& sequence, const Layout& layout,
               std::size_t index) {
  const SequenceSlot& entry = sequence.slots[index];
  const Request& request = problem.requests[entry.request];
  Slot slot;
  slot.id = request.id;
  slot.size = request.size;
  // Sizes may differ between repetitions as long as they round up to the same.
  if (index >= sequence.prologue && index < sequence.body_end()) {
    for (std::size_t r = 1; r < steady.repetitions; ++r) {
      slot.size = std::max(slot.size, problem.requests[entry.request + r * steady.period].size);
    }
  }
  slot.size = std::max(slot.size, entry.largest);
  slot.lower = problem.repeats ? index : request.lower;
  slot.upper = problem.repeats ? entry.upper : request.upper;
  slot.stream = request.stream;
  if (entry.pass != PassReason::None) {
    slot.kind = SlotKind::PassThrough;
    return slot;
  }
  const bool freed = entry.upper < sequence.slots.size() || request.until != kNever;
  slot.kind = freed ? SlotKind::Static : SlotKind::Persistent;
  if (entry.largest != 0) slot.kind = SlotKind::Dynamic;
  if (entry.bytes > 0) {
    slot.view = layout.places[index].view;
    slot.offset = layout.places[index].offset;
  }
  return slot;
}

std::optional<Layout> lay_out(const Sequence& sequence, const LayoutOptions& layout, const PlanOptions& options) {
  if (!options.contiguous) return make_layout(sequence, layout);
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(options.contiguous_seconds);
  return make_contiguous_layout(sequence, {.granularity = layout.granularity,
                                           .capacity = options.contiguous_capacity,
                                           .streams = layout.streams,
                                           .stop = [end] { return Clock::now() >= end; }});
}

// One candidate: what repeats, and the layout that follows.
struct Candidate {
  Steps steps;
  Sequence sequence;
  std::optional<Layout> layout;  // nothing: the body cannot be placed consistently
};

// The requests in the order of the plan.
const Problem& in_order(const Problem& recorded, const Steps& steps) {
  return steps.threads ? steps.threads->problem : recorded;
}

Candidate make_candidate(const Problem& recorded, Steps steps, const LayoutOptions& layout,
                         const PlanOptions& options) {
  Candidate made;
  made.steps = std::move(steps);
  made.sequence = make_sequence(in_order(recorded, made.steps), made.steps.steady, options.streams);
  made.layout = lay_out(made.sequence, layout, options);
  return made;
}

// The slot of each recorded request; kNone: it has none.
std::vector<std::size_t> slots_of(const Problem& recorded, const Candidate& made) {
  std::vector<std::size_t> slots(recorded.requests.size(), kNone);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const std::size_t at = made.steps.threads ? made.steps.threads->position[i] : i;
    if (at != kNone) slots[i] = slot_of(made.sequence, made.steps.steady, at);
  }
  return slots;
}

// The recorded peak of the requests that the plan serves, without those that are passed through since the sequence was
// built.
std::uint64_t planned_peak(Problem recorded, const Candidate& made) {
  const std::vector<std::size_t> slots = slots_of(recorded, made);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    recorded.requests[i].pass = slots[i] == kNone ? PassReason::Left : made.sequence.slots[slots[i]].pass;
  }
  return peak_live_bytes(recorded);
}

// Values whose old version lives until the new one exists (an optimizer that does not work in place) alternate between
// two places from step to step. A body of an odd number of such steps would end with them in the other place, and needs
// a third; twice as many steps need two.
//
//   place 1   |old--|     |old--|     |     |old--|     |old--|     |old
//   place 2      |new--|     |new--|  |        |new--|     |new--|  |
//             <   body of 3 steps     ><         and of 3 more      >
void try_twice_as_long(const Problem& recorded, const LayoutOptions& layout, const PlanOptions& options,
                       Candidate* best) {
  const SteadyState& steady = best->steps.steady;
  if (options.contiguous || !best->layout || steady.period == 0 || steady.catch_all) return;
  const std::uint64_t peak = planned_peak(recorded, *best);
  if (best->layout->pages * layout.granularity <= peak + peak / kMuchLost) return;
  SteadyState longer = find_steady_state(in_order(recorded, best->steps), 2 * steady.unrolled);
  if (longer.unrolled <= steady.unrolled) return;
  Candidate twice = make_candidate(recorded, {std::move(longer), best->steps.threads}, layout, options);
  if (twice.layout && twice.layout->pages < best->layout->pages) *best = std::move(twice);
}

std::string check(const Problem& problem, const PlanOptions& options, std::uint64_t granularity) {
  if (!is_granularity(granularity)) {
    return "the granularity must be " + std::string(kGranularityRule) + ", not " + std::to_string(granularity) +
           " bytes";
  }
  if (options.handle_cap != 0 && options.handle_cap < granularity)
    return "the largest handle must be at least a page, which has " + std::to_string(granularity) + " bytes";
  if (problem.requests.size() >= std::numeric_limits<std::uint32_t>::max()) {
    return "more requests than a plan can number";
  }
  if (!fits_a_device(problem)) return kFitsNoDevice;
  return {};
}

// A beginning can be laid out whatever the requests are, so the layout is there unless the search ended early.
Candidate find_best_candidate(const Problem& problem, const LayoutOptions& layout, const PlanOptions& options) {
  Steps found = options.whole_run ? Steps{} : find_steps(problem);
  if (found.steady.period == 0 && !options.whole_run) found.steady = find_beginning(problem);
  Candidate best = make_candidate(problem, std::move(found), layout, options);
  try_twice_as_long(problem, layout, options, &best);
  const bool ended = layout.left != nullptr && *layout.left == 0;
  if (!best.layout && !ended) best = make_candidate(problem, {find_beginning(problem), {}}, layout, options);
  return best;
}

void add_slots(const Problem& problem, const Candidate& made, PlannedDevice* to) {
  const auto& [steps, sequence, layout] = made;
  DevicePlan& plan = to->plan;
  PlanReport& report = to->report;
  plan.prologue = static_cast<std::uint32_t>(sequence.prologue);
  plan.body = static_cast<std::uint32_t>(sequence.body);
  plan.slots.reserve(sequence.slots.size());
  for (std::size_t i = 0; i < sequence.slots.size(); ++i) {
    plan.slots.push_back(make_slot(in_order(problem, steps), steps.steady, sequence, *layout, i));
    if (steps.threads) plan.lanes.push_back(steps.threads->lanes[sequence.slots[i].request]);
    report.stitched_slots += plan.slots.back().view != 0 ? 1 : 0;
    const PassReason pass = sequence.slots[i].pass;
    if (pass >= PassReason::Varying) plan.varying.push_back(static_cast<std::uint32_t>(i));
    if (pass == PassReason::Leaked || pass == PassReason::Unordered) {
      plan.unplaced.push_back(static_cast<std::uint32_t>(i));
    }
    report.dynamic_slots += plan.slots.back().kind == SlotKind::Dynamic ? 1 : 0;
    ++report.passed[static_cast<std::size_t>(pass)];
  }
}

void describe_steps(const SteadyState& steady, PlanReport* report) {
  report->beginning_only = steady.catch_all;
  report->period = steady.catch_all ? 0 : steady.period;
  report->repetitions = steady.catch_all ? 0 : steady.repetitions;
  report->by_call_site = !steady.sizes.empty();
  report->unrolled = steady.period == 0 ? 1 : steady.unrolled;
}

// The most pages of a handle.
std::uint64_t handle_pages(std::uint64_t all_pages, std::uint64_t granularity, const PlanOptions& options) {
  if (options.contiguous) return std::max<std::uint64_t>(all_pages, 1);
  if (options.handle_cap != 0) return options.handle_cap / granularity;
  return std::max<std::uint64_t>({kDefaultHandleBytes / granularity, all_pages / kDefaultHandles, 1});
}

}  // namespace

const char* describe(PassReason reason) {
  constexpr std::array<const char*, kPassReasons> kWords = {
      "planned", "empty", "captured", "exported", "communication", "probe", "leaked", "unordered", "varying", "left"};
  return kWords[static_cast<std::size_t>(reason)];
}

Expected<PlannedDevice> plan_device(const Problem& problem, const PlanOptions& options) {
  using Result = Expected<PlannedDevice>;
  Result result;
  DevicePlan& plan = result.value.plan;
  PlanReport& report = result.value.report;
  plan.device = problem.device;
  plan.granularity = options.granularity != 0   ? options.granularity
                     : problem.granularity != 0 ? problem.granularity
                                                : kDefaultGranularity;
  if (std::string error = check(problem, options, plan.granularity); !error.empty()) return Result::failure(error);

  std::uint64_t left = options.most_examined;
  const Candidate best =
      find_best_candidate(problem, {plan.granularity, options.streams, options.progress, &left}, options);
  if (!best.layout) return Result::failure("the search for places ended before any were found");
  const Layout& layout = *best.layout;
  const std::uint64_t cap = handle_pages(layout.pages, plan.granularity, options);
  if (layout.pages > kMostHandles * cap) {
    return Result::failure("the plan would need more than " + std::to_string(kMostHandles) +
                           " handles: raise the largest handle");
  }
  const std::vector<std::size_t> slots = slots_of(problem, best);
  plan.peak_live_bytes = planned_peak(problem, best);
  add_slots(problem, best, &result.value);
  cut_handles(layout.pages, layout.stitched, cap * plan.granularity, plan);
  add_waits(problem, slots, best.sequence, layout, plan);

  report.requests = problem.requests.size();
  report.without_slot = static_cast<std::uint64_t>(std::count(slots.begin(), slots.end(), kNone));
  if (!plan.lanes.empty()) report.lanes = *std::max_element(plan.lanes.begin(), plan.lanes.end()) + std::uint64_t{1};
  report.contiguous = options.contiguous;
  describe_steps(best.steps.steady, &report);
  return result;
}

}  // namespace stalloc::plan
