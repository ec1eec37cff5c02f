#include "plan/planner.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "plan/beginning.h"
#include "plan/contiguous.h"
#include "plan/handles.h"
#include "plan/layout.h"
#include "plan/ordering.h"
#include "plan/steady_state.h"

namespace stalloc::plan {
namespace {

constexpr std::uint64_t kMostHandles = 1 << 20;

Slot make_slot(const Problem& problem, const SteadyState& steady, const Sequence& sequence, const Layout& layout,
               std::size_t index) {
  const Item& item = sequence.items[index];
  const Request& request = problem.requests[item.request];
  Slot slot;
  slot.id = request.id;
  slot.size = request.size;
  // Sizes may differ between repetitions as long as they round up to the same.
  if (index >= sequence.prologue && index < sequence.body_end()) {
    for (std::size_t r = 1; r < steady.repetitions; ++r) {
      slot.size = std::max(slot.size, problem.requests[item.request + r * steady.period].size);
    }
  }
  slot.size = std::max(slot.size, item.largest);
  slot.lower = problem.repeats ? index : request.lower;
  slot.upper = problem.repeats ? item.upper : request.upper;
  slot.stream = request.stream;
  if (item.pass != PassReason::None) {
    slot.kind = SlotKind::PassThrough;
    return slot;
  }
  const bool freed = item.upper < sequence.items.size() || request.until != kNever;
  slot.kind = freed ? SlotKind::Static : SlotKind::Persistent;
  if (item.largest != 0) slot.kind = SlotKind::Dynamic;
  if (item.bytes > 0) {
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

// The peak of what the plan serves: without what only the sequence found to be passed through.
std::uint64_t planned_peak(Problem problem, const SteadyState& steady, const Sequence& sequence) {
  for (std::size_t i = 0; i < problem.requests.size(); ++i) {
    problem.requests[i].pass = sequence.items[slot_of(sequence, steady, i)].pass;
  }
  return peak_live_bytes(problem);
}

std::string check_options(const PlanOptions& options, std::uint64_t granularity) {
  if (granularity == 0 || granularity % kUnitBytes != 0) {
    return "the granularity must be a multiple of " + std::to_string(kUnitBytes) + " bytes";
  }
  if (options.handle_cap != 0 && options.handle_cap < granularity)
    return "the largest handle is smaller than the granularity";
  return {};
}

// The most pages of a handle.
std::uint64_t handle_pages(const Sequence& sequence, std::uint64_t pages, std::uint64_t granularity,
                           const PlanOptions& options) {
  if (options.contiguous) return std::max<std::uint64_t>(pages, 1);
  if (options.handle_cap != 0) return options.handle_cap / granularity;
  const bool shared = std::any_of(sequence.items.begin(), sequence.items.end(),
                                  [](const Item& item) { return item.pass >= PassReason::Varying; });
  return std::max<std::uint64_t>((shared ? kSharedHandleCap : kDefaultHandleCap) / granularity, 1);
}

}  // namespace

const char* describe(PassReason reason) {
  constexpr std::array<const char*, kPassReasons> kWords = {
      "planned", "empty", "captured", "exported", "communication", "probe", "leaked", "unordered", "varying", "left"};
  return kWords[static_cast<std::size_t>(reason)];
}

Outcome<PlannedDevice> plan_device(const Problem& problem, const PlanOptions& options) {
  using Result = Outcome<PlannedDevice>;
  Result result;
  DevicePlan& plan = result.value.plan;
  PlanReport& report = result.value.report;
  plan.device = problem.device;
  plan.granularity = options.granularity != 0   ? options.granularity
                     : problem.granularity != 0 ? problem.granularity
                                                : kDefaultGranularity;
  if (std::string error = check_options(options, plan.granularity); !error.empty()) return Result::failure(error);
  if (problem.requests.size() >= std::numeric_limits<std::uint32_t>::max()) {
    return Result::failure("more requests than a plan can number");
  }

  if (peak_live_bytes(problem) > kMostBytes)
    return Result::failure("the requests need more memory than any device has");

  SteadyState steady = options.whole_run ? SteadyState{} : find_steady_state(problem);
  if (steady.period == 0 && !options.whole_run) steady = find_beginning(problem);
  Sequence sequence = make_sequence(problem, steady, options.streams);
  const LayoutOptions layout_options{plan.granularity, options.streams, options.progress};
  std::optional<Layout> layout = lay_out(sequence, layout_options, options);
  if (!layout) {  // the body cannot be placed consistently: rely on no repetition
    steady = find_beginning(problem);
    sequence = make_sequence(problem, steady, options.streams);
    layout = lay_out(sequence, layout_options, options);
  }

  const std::uint64_t cap = handle_pages(sequence, layout->pages, plan.granularity, options);
  if (layout->pages > kMostHandles * cap) {
    return Result::failure("the plan would need more than " + std::to_string(kMostHandles) +
                           " handles: raise the largest handle");
  }
  plan.peak_live_bytes = planned_peak(problem, steady, sequence);
  plan.prologue = static_cast<std::uint32_t>(sequence.prologue);
  plan.body = static_cast<std::uint32_t>(sequence.body);
  plan.slots.reserve(sequence.items.size());
  for (std::size_t i = 0; i < sequence.items.size(); ++i) {
    plan.slots.push_back(make_slot(problem, steady, sequence, *layout, i));
    report.stitched_slots += plan.slots.back().view != 0 ? 1 : 0;
    if (sequence.items[i].pass >= PassReason::Varying) plan.varying.push_back(static_cast<std::uint32_t>(i));
    report.dynamic_slots += plan.slots.back().kind == SlotKind::Dynamic ? 1 : 0;
    ++report.passed[static_cast<std::size_t>(sequence.items[i].pass)];
  }
  cut_handles(layout->pages, layout->stitched, cap * plan.granularity, plan);
  add_waits(problem, steady, sequence, *layout, plan);

  report.requests = problem.requests.size();
  report.contiguous = options.contiguous;
  report.beginning_only = steady.any;
  report.period = steady.any ? 0 : steady.period;
  report.repetitions = steady.any ? 0 : steady.repetitions;
  report.by_call_site = !steady.sizes.empty();
  report.unrolled = steady.period == 0 ? 1 : steady.unrolled;
  return result;
}

}  // namespace stalloc::plan
