// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/planned/spare_slots.h"

#include <vector>

#include "catch.h"
#include "plans.h"

using namespace stalloc;
using namespace stalloc::test;
using serve::SpareSlots;

namespace {

constexpr std::uint64_t kUnit = plan::kUnitBytes;

// Slots of a prologue that live through the body, and a body of one slot.
plan::DevicePlan plan_with(const std::vector<std::uint64_t>& sizes) {
  plan::DevicePlan plan;
  for (const std::uint64_t size : sizes) add_slot(&plan, size, 0);
  add_slot(&plan, kUnit, 0);
  for (plan::Slot& slot : plan.slots) slot.upper = plan.slots.size();
  plan.prologue = static_cast<std::uint32_t>(sizes.size());
  plan.body = 1;
  return plan;
}

// The slots that are offered for a size while those in `refused` are not taken.
std::vector<std::uint32_t> offered(SpareSlots& slots, std::uint64_t bytes, std::uint32_t refused = 0) {
  std::vector<std::uint32_t> seen;
  slots.offer(bytes, [&](std::uint32_t slot) {
    seen.push_back(slot);
    return seen.size() > refused;
  });
  return seen;
}

}  // namespace

TEST_CASE("spare slots of a size are offered in the plan's order, each once", "[serve][spare_slots]") {
  SpareSlots slots(plan_with({3 * kUnit, 5 * kUnit, 2 * kUnit + 1, 3 * kUnit}));
  using Slots = std::vector<std::uint32_t>;
  REQUIRE(offered(slots, 3 * kUnit) == Slots{0});
  REQUIRE(offered(slots, 3 * kUnit - 1, 1) == Slots{2, 3});  // the first that is offered is refused
  REQUIRE(offered(slots, 3 * kUnit).empty());
  REQUIRE(offered(slots, 5 * kUnit, 1) == Slots{1});
  REQUIRE(offered(slots, 5 * kUnit).empty());
  REQUIRE(offered(slots, 4 * kUnit).empty());
}

TEST_CASE("no slot of the body, none that is freed, and none without a place is spare", "[serve][spare_slots]") {
  plan::DevicePlan plan = plan_with({kUnit, kUnit, kUnit, kUnit});
  plan.slots[0].upper = 2;
  plan.slots[1].kind = plan::SlotKind::PassThrough;
  plan.slots[2].kind = plan::SlotKind::Dynamic;
  SpareSlots slots(plan);
  REQUIRE(offered(slots, kUnit, 9) == std::vector<std::uint32_t>{3});

  plan.prologue = 5;
  plan.body = 0;
  SpareSlots none(plan);
  REQUIRE(offered(none, kUnit).empty());
}
