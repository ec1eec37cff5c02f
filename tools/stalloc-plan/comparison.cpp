#include "tools/stalloc-plan/comparison.h"

#include <fmt/format.h>

#include "plan/planner.h"

namespace stalloc::tool {

plan::Outcome<Comparison> compare(const plan::Problem& all, std::uint64_t granularity, const plan::DevicePlan* plan,
                                  const WatchAll& watch) {
  const plan::Problem problem = plan::framework_requests(all);
  plan::Outcome<Comparison> result;
  Comparison& comparison = result.value;
  if (plan != nullptr) {
    comparison.plan = *plan;
  } else {
    auto planned = plan::plan_device(problem, {.granularity = granularity});  // refuses what cannot be simulated
    if (!planned.ok()) return plan::Outcome<Comparison>::failure(planned.error);
    comparison.plan = std::move(planned.value.plan);
  }
  comparison.device = all.device;
  const plan::Problem outside = plan::outside_requests(all);
  for (std::size_t i = 0; i < all.requests.size(); ++i) {
    comparison.requests += problem.requests[i].bytes() > 0 ? 1 : 0;
    comparison.outside_requests += outside.requests[i].bytes() > 0 ? 1 : 0;
  }
  comparison.outside_bytes = plan::peak_live_bytes(outside);
  const auto watching = [&watch](std::size_t allocator) -> plan::Watch {
    if (!watch) return nullptr;
    return [&watch, allocator](std::size_t request, std::uint64_t held) { watch(allocator, request, held); };
  };
  comparison.held = {plan::simulate_caching(problem, watching(0)), plan::simulate_expandable(problem, watching(1)),
                     plan::simulate_online(problem, comparison.plan.granularity, watching(2)),
                     plan::simulate_planned(problem, comparison.plan, watching(3))};
  return result;
}

double held_per_live(const plan::Held& held) {
  return held.live_bytes == 0 ? 1.0 : static_cast<double>(held.held_bytes) / static_cast<double>(held.live_bytes);
}

double lost_share(const plan::Held& held) {
  return held.held_bytes == 0 ? 0.0 : 1.0 - static_cast<double>(held.live_bytes) / static_cast<double>(held.held_bytes);
}

std::string comparison_json(const Comparison& comparison) {
  std::string rows;
  for (std::size_t i = 0; i < kAllocators.size(); ++i) {
    const plan::Held& held = comparison.held[i];
    if (!rows.empty()) rows += ", ";
    rows += fmt::format(
        "{{\"allocator\": \"{}\", \"live_bytes\": {}, \"held_bytes\": {}, \"held_per_live\": {:.6f}, "
        "\"lost_share\": {:.6f}, \"block_bytes\": {}}}",
        kAllocators[i].key, held.live_bytes, held.held_bytes, held_per_live(held), lost_share(held), held.block_bytes);
  }
  return fmt::format(
      "\"device\": {}, \"requests\": {}, \"outside_requests\": {}, \"outside_peak_bytes\": {}, \"allocators\": [{}]",
      comparison.device, comparison.requests, comparison.outside_requests, comparison.outside_bytes, rows);
}

}  // namespace stalloc::tool
