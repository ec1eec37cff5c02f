// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/planned/planned.h"

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "catch.h"
#include "fake_driver.h"
#include "plans.h"

using namespace stalloc;
using namespace stalloc::test;
using serve::Cursor;
using serve::PhysicalRange;
using serve::PhysicalRanges;
using serve::Planned;
using serve::PlanState;

namespace {

constexpr std::uint64_t kPages = 4;

// A plan of four handles of a page each, with a slot on each page.
struct Fixture {
  FakeDriver driver{kPage};
  std::string why;
  Planned planned = *Planned::create(driver, plan(), &why);
  serve::StreamOrder order{driver, FakeDriver::context(), kPages* kPage, kPage};

  static plan::DevicePlan plan() {
    plan::DevicePlan plan = plan_of_handles(std::vector<std::uint64_t>(kPages, 1));
    for (std::uint64_t slot = 0; slot < kPages; ++slot) add_slot(&plan, kPage, slot * kPage);
    return plan;
  }
  bool take(std::uint32_t slot) { return planned.take(planned.ranges(slot), order, serve::kNoStream); }
  // Makes requests that the plan does not have.
  void let_it_not_fit() {
    for (int i = 0; i < 1000; ++i) planned.next(kPage / 2);
    REQUIRE(planned.drop_if_unfit());
  }
};

std::uint64_t bytes_of(const std::vector<PhysicalRange>& ranges) {
  return std::accumulate(ranges.begin(), ranges.end(), std::uint64_t{0},
                         [](std::uint64_t sum, PhysicalRange range) { return sum + range.bytes(); });
}

}  // namespace

TEST_CASE("without a plan nothing is held, served or withheld", "[serve][planned]") {
  FakeDriver driver(kPage);
  Planned none;
  REQUIRE(none.state() == PlanState::None);
  REQUIRE_FALSE(none.exists());
  REQUIRE_FALSE(none.is_followed());
  REQUIRE_FALSE(none.is_dropped());
  REQUIRE_FALSE(none.tracks_free_bytes());
  for (int i = 0; i < 2000; ++i) REQUIRE(none.next(kPage).answer == Cursor::Answer::Unplanned);
  none.pass_through(kPage);
  REQUIRE_FALSE(none.drop_if_unfit());
  REQUIRE(none.physical_bytes() == 0);
  REQUIRE(none.unmerged_bytes() == 0);
  REQUIRE(none.unmerged_idle_bytes(0) == 0);
  REQUIRE(none.planned_bytes() == 0);
  REQUIRE(none.arena() == nullptr);
  REQUIRE_FALSE(none.contains(0));
  REQUIRE(none.grant_access(1) == CUDA_SUCCESS);
  none.close();
}

TEST_CASE("a plan that is followed tracks its own free bytes", "[serve][planned]") {
  Fixture f;
  REQUIRE(f.planned.state() == PlanState::Served);
  REQUIRE(f.planned.next(kPage).answer == Cursor::Answer::Serve);
  REQUIRE(f.take(1));
  REQUIRE_FALSE(f.take(1));
  f.planned.release(f.planned.ranges(1));
  REQUIRE(f.take(1));
  REQUIRE(f.planned.unmerged_bytes() == kPages * kPage);
  REQUIRE(f.planned.unmerged_idle_bytes(kPage) == (kPages - 1) * kPage);
  REQUIRE(f.planned.release_idle_handles(f.order) == 0);
  REQUIRE_FALSE(f.planned.drop_if_unfit());
}

TEST_CASE("bytes that cannot be ordered on the stream are not taken", "[serve][planned]") {
  Fixture f;
  const StreamKey stream{f.driver.new_stream(), 0};
  const serve::StreamOrdinal ordinal = f.order.ordinal(stream);
  REQUIRE(f.take(0));
  f.driver.work(stream);
  f.order.mark_freed(f.planned.ranges(0), ordinal, f.order.assign_free_number(ordinal));
  f.planned.release(f.planned.ranges(0));
  REQUIRE_FALSE(f.take(0));
  REQUIRE(f.planned.take(f.planned.ranges(0), f.order, ordinal));  // its bytes are still free after the refusal
}

TEST_CASE("free bytes are handed over once, and requests still find their slots", "[serve][planned]") {
  Fixture f;
  REQUIRE(f.take(2));
  REQUIRE(bytes_of(f.planned.free_bytes().usable) == (kPages - 1) * kPage);
  REQUIRE(f.planned.state() == PlanState::Served);
  f.planned.hand_over({});
  REQUIRE(f.planned.state() == PlanState::Merged);
  REQUIRE_FALSE(f.planned.tracks_free_bytes());
  REQUIRE(f.planned.next(kPage).answer == Cursor::Answer::Serve);
  REQUIRE(f.planned.unmerged_bytes() == 0);
  REQUIRE(f.planned.physical_bytes() == kPages * kPage);
  f.let_it_not_fit();
  REQUIRE(f.planned.state() == PlanState::DroppedMerged);
}

TEST_CASE("places of slots that live through the body are withheld until they are needed", "[serve][planned]") {
  const bool dropped = GENERATE(false, true);
  Fixture f;
  plan::DevicePlan plan = Fixture::plan();
  plan.prologue = 3;
  plan.body = 1;
  for (const std::size_t stays : {0, 2}) plan.slots[stays].upper = kPages;
  plan.slots[1].upper = 2;
  plan.slots[3].upper = kPages;  // this slot belongs to the body
  f.planned = *Planned::create(f.driver, plan, &f.why);
  if (dropped) f.let_it_not_fit();
  REQUIRE(f.take(0));
  Planned::FreeBytes free = f.planned.free_bytes();
  REQUIRE(bytes_of(free.usable) == (dropped ? 3 : 2) * kPage);
  REQUIRE(free.withheld.bytes() == (dropped ? 0 : 1) * kPage);
  REQUIRE(f.planned.withheld_bytes() == 0);
  f.planned.hand_over(std::move(free.withheld));
  REQUIRE(f.planned.withheld_bytes() == (dropped ? 0 : 1) * kPage);
  if (dropped) return;
  REQUIRE(f.planned.take_withheld(f.planned.ranges(1)).empty());
  REQUIRE(bytes_of(f.planned.take_withheld(f.planned.ranges(2))) == kPage);
  REQUIRE(f.planned.withheld_bytes() == 0);
  REQUIRE(f.planned.take_withheld().empty());
}

TEST_CASE("a plan of another program is dropped once, and releases its idle handles", "[serve][planned]") {
  Fixture f;
  REQUIRE(f.take(3));
  f.let_it_not_fit();
  REQUIRE(f.planned.state() == PlanState::Dropped);
  REQUIRE_FALSE(f.planned.drop_if_unfit());
  REQUIRE(f.planned.next(kPage).answer == Cursor::Answer::Unplanned);
  REQUIRE(f.planned.release_idle_handles(f.order) == (kPages - 1) * kPage);
  REQUIRE(f.planned.physical_bytes() == kPage);
}

TEST_CASE("a dropped plan is followed again only if all of its memory is still mapped", "[serve][planned]") {
  Fixture f;
  plan::DevicePlan plan = Fixture::plan();
  add_view(&plan, {2, 0});
  f.planned = *Planned::create(f.driver, plan, &f.why);
  const std::uint64_t unmapped_before = GENERATE(0, 1);
  f.planned.drop();
  constexpr std::uint64_t kAllLaterCalls = 1000;
  f.driver.fail_at(unmapped_before + 1, CUDA_ERROR_UNKNOWN, kAllLaterCalls);
  REQUIRE(f.planned.release_idle_handles(f.order) == 0);
  f.driver.fail_at(0);
  f.planned.follow_again();
  REQUIRE(f.planned.is_followed() == (unmapped_before == 0));
}

TEST_CASE("a dropped plan hands over its free bytes as well", "[serve][planned]") {
  Fixture f;
  f.let_it_not_fit();
  REQUIRE(bytes_of(f.planned.free_bytes().usable) == kPages * kPage);
  f.planned.hand_over({});
  REQUIRE(f.planned.state() == PlanState::DroppedMerged);
  REQUIRE(f.planned.is_dropped());
}
