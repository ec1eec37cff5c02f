// SPDX-License-Identifier: Apache-2.0
#include "tools/stalloc-plan/simulated_allocators.h"

#include "plan/planner.h"
#include "plan/steps/late_frees.h"

namespace stalloc::tool {

plan::Expected<Comparison> compare(const plan::Problem& all, std::uint64_t granularity, const plan::DevicePlan* plan,
                                   const AllocatorObserver& observer) {
  const plan::Problem problem = plan::framework_requests(all);
  plan::Expected<Comparison> result;
  Comparison& comparison = result.value;
  if (!plan::fits_a_device(problem)) return plan::Expected<Comparison>::failure(plan::kFitsNoDevice);
  if (plan != nullptr) {
    comparison.plan = *plan;
  } else {
    auto planned = plan::plan_device(plan::without_late_frees(problem).problem, {.granularity = granularity});
    if (!planned.ok()) return plan::Expected<Comparison>::failure(planned.error);
    comparison.plan = std::move(planned.value.plan);
  }
  comparison.device = all.device;
  const plan::Problem outside = plan::outside_requests(all);
  for (std::size_t i = 0; i < all.requests.size(); ++i) {
    comparison.requests += problem.requests[i].bytes() > 0 ? 1 : 0;
    comparison.outside_requests += outside.requests[i].bytes() > 0 ? 1 : 0;
  }
  comparison.outside_bytes = plan::peak_live_bytes(outside);
  const auto observe = [&observer](std::size_t allocator) -> plan::HeldObserver {
    if (!observer) return nullptr;
    return [&observer, allocator](std::size_t request, std::uint64_t held) { observer(allocator, request, held); };
  };
  comparison.memory = {plan::simulate_caching(problem, observe(0)), plan::simulate_expandable(problem, observe(1)),
                       plan::simulate_online(problem, comparison.plan.granularity, observe(2)),
                       plan::simulate_planned(problem, comparison.plan, observe(3))};
  return result;
}

double held_per_live(const plan::PeakMemory& memory) {
  return memory.live_bytes == 0 ? 1.0 : static_cast<double>(memory.held_bytes) / static_cast<double>(memory.live_bytes);
}

double lost_share(const plan::PeakMemory& memory) {
  return memory.held_bytes == 0 ? 0.0
                                : 1.0 - static_cast<double>(memory.live_bytes) / static_cast<double>(memory.held_bytes);
}

void write_comparison(JsonWriter& json, const Comparison& comparison) {
  json.member("device", comparison.device);
  json.member("requests", comparison.requests);
  json.member("outside_requests", comparison.outside_requests);
  json.member("outside_peak_bytes", comparison.outside_bytes);
  const auto allocators = json.array("allocators");
  for (std::size_t i = 0; i < kAllocators.size(); ++i) {
    const plan::PeakMemory& memory = comparison.memory[i];
    const auto object = json.object();
    json.member("allocator", kAllocators[i].key);
    json.member("live_bytes", memory.live_bytes);
    json.member("held_bytes", memory.held_bytes);
    json.member("held_per_live", Fixed{held_per_live(memory)});
    json.member("lost_share", Fixed{lost_share(memory)});
    json.member("block_bytes", memory.block_bytes);
  }
}

}  // namespace stalloc::tool
