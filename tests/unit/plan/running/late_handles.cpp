// SPDX-License-Identifier: Apache-2.0
// Which handles of a step's plan are created during its first step.
#include "plan/running/late_handles.h"

#include <cstdint>
#include <vector>

#include "catch.h"

using namespace stalloc;
using plan::DevicePlan;
using plan::LateHandles;
using plan::Slot;
using plan::SlotKind;

namespace {

constexpr std::uint64_t kPage = std::uint64_t{2} << 20;

// Slots of a body, in pages of the home view unless `view` says otherwise.
struct Wanted {
  std::uint64_t offset = 0;
  std::uint64_t pages = 0;
  std::uint64_t lives = 0;  // in requests
  std::uint32_t view = 0;
};

DevicePlan plan_of(const std::vector<std::uint64_t>& handles, const std::vector<Wanted>& slots) {
  DevicePlan plan;
  plan.granularity = kPage;
  plan.views.resize(1);
  for (const std::uint64_t pages : handles) {
    plan.views[0].handles.push_back(static_cast<std::uint32_t>(plan.handles.size()));
    plan.handles.push_back(pages * kPage);
    plan.physical_bytes += pages * kPage;
  }
  for (const Wanted& wanted : slots) {
    Slot slot;
    slot.lower = plan.slots.size();
    slot.upper = slot.lower + wanted.lives;
    slot.offset = wanted.offset * kPage;
    slot.size = wanted.pages * kPage;
    slot.view = wanted.view;
    plan.slots.push_back(slot);
  }
  plan.body = static_cast<std::uint32_t>(plan.slots.size());
  return plan;
}

}  // namespace

TEST_CASE("a handle that is first used when a block of the step before has ended is late", "[plan][running]") {
  // The second slot's block of the step before lives until request 1.
  const LateHandles late = plan::choose_late_handles(plan_of({10, 8}, {{0, 10, 1}, {10, 8, 3}, {0, 5, 1}}));
  REQUIRE(late.from == 1);
  REQUIRE(late.is_late == std::vector<bool>{false, true});
  REQUIRE(late.bytes == 8 * kPage);
  REQUIRE(late.ended_bytes == 8 * kPage);
}

TEST_CASE("no handle is late if that saves nothing", "[plan][running]") {
  SECTION("nothing lives from one step to the next") {
    const LateHandles late = plan::choose_late_handles(plan_of({10, 8}, {{0, 10, 1}, {10, 8, 2}, {0, 5, 1}}));
    REQUIRE(late.from == 0);
    REQUIRE(late.is_late.empty());
  }
  SECTION("all are used before such a block has ended") {
    REQUIRE(plan::choose_late_handles(plan_of({10, 8}, {{0, 18, 1}, {10, 8, 3}, {0, 5, 1}})).is_late.empty());
  }
  SECTION("a stitched view shows all of them, and is mapped as a whole") {
    DevicePlan plan = plan_of({10, 8}, {{0, 10, 1, 1}, {10, 8, 3}, {0, 5, 1}});
    plan.views.push_back({18 * kPage, {1, 0}});
    REQUIRE(plan::choose_late_handles(plan).is_late.empty());
  }
  SECTION("the block's request has no place") {
    DevicePlan plan = plan_of({10, 8}, {{0, 10, 1}, {10, 8, 3}, {0, 5, 1}});
    plan.slots[1].kind = SlotKind::PassThrough;
    REQUIRE(plan::choose_late_handles(plan).is_late.empty());
  }
}

TEST_CASE("of several moments the one with the least memory is chosen", "[plan][running]") {
  // Of the step before, 2 pages live until request 1, 9 until request 2 and 1 until request 4. With 24 pages in all,
  // and 10, 10 and 20 of them used before these, that is at most 24 + 10, 24 + 1 and 24 + 0 or 12 + 20.
  const std::vector<Wanted> slots = {{0, 10, 1}, {0, 2, 1}, {10, 9, 1}, {10, 1, 6}, {20, 2, 2}, {0, 9, 3}, {9, 2, 1}};
  const LateHandles late = plan::choose_late_handles(plan_of({10, 10, 4}, slots));
  REQUIRE(late.from == 2);
  REQUIRE(late.is_late == std::vector<bool>{false, true, true});
  REQUIRE(late.bytes == 14 * kPage);
}
