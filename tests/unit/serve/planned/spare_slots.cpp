// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/planned/spare_slots.h"

#include <vector>

#include "catch.h"
#include "plans.h"

using namespace stalloc;
using namespace stalloc::test;
using serve::slots_through_body;
using serve::SpareSlots;

namespace {

constexpr std::uint64_t kUnit = plan::kUnitBytes;

// A plan of a prologue whose slots live through the body, and a body of one slot.
plan::DevicePlan plan_with(const std::vector<std::uint64_t>& sizes) {
  plan::DevicePlan plan;
  for (const std::uint64_t size : sizes) add_slot(&plan, size, 0);
  add_slot(&plan, kUnit, 0);
  for (plan::Slot& slot : plan.slots) slot.upper = plan.slots.size();
  plan.prologue = static_cast<std::uint32_t>(sizes.size());
  plan.body = 1;
  return plan;
}

// The slots that are offered for a size, where `refused` of them are not taken.
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
  SpareSlots slots(plan_with({3 * kUnit, 5 * kUnit, 2 * kUnit + 1, 3 * kUnit, kUnit, kUnit}));
  using Slots = std::vector<std::uint32_t>;
  REQUIRE(offered(slots, 3 * kUnit) == Slots{0});
  REQUIRE(offered(slots, 3 * kUnit - 1, 1) == Slots{2, 3});  // the first offered slot is refused
  REQUIRE(offered(slots, 3 * kUnit).empty());
  REQUIRE(offered(slots, 5 * kUnit, 1) == Slots{1});
  REQUIRE(offered(slots, 5 * kUnit).empty());
  REQUIRE(offered(slots, 4 * kUnit).empty());
}

TEST_CASE("slots of the body, freed slots and slots without a place are not spare", "[serve][spare_slots]") {
  plan::DevicePlan plan = plan_with(std::vector<std::uint64_t>(9, kUnit));
  plan.slots[0].upper = 2;
  plan.slots[1].kind = plan::SlotKind::PassThrough;
  plan.slots[2].kind = plan::SlotKind::Dynamic;
  SpareSlots slots(plan);
  REQUIRE(slots_through_body(plan) == std::vector<std::uint32_t>{3, 4, 5, 6, 7, 8});
  REQUIRE(offered(slots, kUnit, 9) == std::vector<std::uint32_t>{3, 4, 5, 6, 7, 8});

  plan.prologue = 10;
  plan.body = 0;
  SpareSlots none(plan);
  REQUIRE(offered(none, kUnit).empty());
  REQUIRE(slots_through_body(plan).empty());
}

TEST_CASE("slots that live through the body are spare if many were allocated at a time", "[serve][spare_slots]") {
  // Two workspaces, a state of six tensors with other requests between them, and another workspace.
  const std::vector<std::uint32_t> live = {3, 4, 20, 22, 23, 26, 27, 31, 42};
  plan::DevicePlan plan = plan_with(std::vector<std::uint64_t>(50, kUnit));
  for (std::uint32_t slot = 0; slot < plan.prologue; ++slot) plan.slots[slot].upper = slot + 1;
  for (const std::uint32_t slot : live) plan.slots[slot].upper = plan.slots.size();
  REQUIRE(slots_through_body(plan) == live);
  SpareSlots slots(plan);
  REQUIRE(offered(slots, kUnit, 99) == std::vector<std::uint32_t>{20, 22, 23, 26, 27, 31});
}
