// SPDX-License-Identifier: Apache-2.0
#include "plan/follow/cursor.h"

#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "catch.h"
#include "tests/unit/seeds.h"
#include "tests/unit/serve/plans.h"

using namespace stalloc;
using namespace stalloc::test;
using plan::Cursor;
using Answer = Cursor::Answer;

namespace {

// A plan of slots with these sizes in units. `prologue` and `body` count slots.
plan::DevicePlan plan_of_units(const std::vector<std::uint64_t>& units, std::uint32_t prologue, std::uint32_t body) {
  plan::DevicePlan plan;
  for (const std::uint64_t size : units) add_slot(&plan, size * plan::kUnitBytes, 0);
  plan.prologue = prologue;
  plan.body = body;
  return plan;
}

constexpr int kNone = -1;

// The slot of a request of so many units; kNone: the plan does not serve it.
int request(Cursor& cursor, std::uint64_t units) {
  const Cursor::Next step = cursor.next(units * plan::kUnitBytes);
  return step.answer == Answer::Serve ? static_cast<int>(step.slot) : kNone;
}

std::vector<std::uint64_t> random_units(std::size_t count, std::uint64_t kinds, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::uint64_t> units(count);
  for (std::uint64_t& unit : units) unit = random() % kinds + 1;
  return units;
}

}  // namespace

TEST_CASE("the prologue comes once, the body repeatedly, then the epilogue", "[serve][cursor]") {
  Cursor cursor(plan_of_units({1, 2, 3, 4, 5, 6}, 2, 2));
  REQUIRE(request(cursor, 1) == 0);
  REQUIRE(request(cursor, 2) == 1);
  for (int repetition = 0; repetition < 3; ++repetition) {
    REQUIRE(request(cursor, 3) == 2);
    REQUIRE(request(cursor, 4) == 3);
  }
  REQUIRE(request(cursor, 5) == 4);
  REQUIRE(request(cursor, 6) == 5);
  REQUIRE(request(cursor, 3) == 2);
  REQUIRE(cursor.resynchronizations() == 0);
}

TEST_CASE("if body and epilogue begin with the same size, the body is taken", "[serve][cursor]") {
  Cursor cursor(plan_of_units({3, 4, 3, 9}, 0, 2));
  REQUIRE(request(cursor, 3) == 0);
  REQUIRE(request(cursor, 4) == 1);
  REQUIRE(request(cursor, 3) == 0);
}

TEST_CASE("an epilogue that begins like the body is known by its first other request", "[serve][cursor]") {
  Cursor cursor(plan_of_units({1, 3, 4, 5, 6, 3, 4, 7, 8}, 1, 4));
  REQUIRE(request(cursor, 1) == 0);
  for (const std::uint64_t units : {3, 4, 5, 6, 3, 4}) REQUIRE(request(cursor, units) == static_cast<int>(units) - 2);
  REQUIRE(request(cursor, 7) == 7);
  REQUIRE(request(cursor, 8) == 8);
  REQUIRE(request(cursor, 3) == 1);
  REQUIRE(cursor.resynchronizations() == 0);
}

TEST_CASE("a program does not begin with the epilogue", "[serve][cursor]") {
  Cursor cursor(plan_of_units({3, 4, 9}, 0, 2));
  REQUIRE(request(cursor, 9) == kNone);
}

TEST_CASE("a plan without a body ends", "[serve][cursor]") {
  Cursor cursor(plan_of_units({1, 2}, 2, 0));
  REQUIRE(request(cursor, 1) == 0);
  REQUIRE(request(cursor, 2) == 1);
  REQUIRE(request(cursor, 1) == kNone);
}

TEST_CASE("an empty plan serves nothing", "[serve][cursor]") {
  Cursor cursor(plan_of_units({}, 0, 0));
  for (int i = 0; i < 100; ++i) REQUIRE(request(cursor, 1) == kNone);
}

TEST_CASE("sizes match by units", "[serve][cursor]") {
  plan::DevicePlan plan;
  add_slot(&plan, 1000, 0);
  plan.prologue = 1;
  REQUIRE(Cursor(plan).next(513).answer == Answer::Serve);
  REQUIRE(Cursor(plan).next(1024).answer == Answer::Serve);
  REQUIRE(Cursor(plan).next(512).answer == Answer::Unplanned);
  REQUIRE(Cursor(plan).next(1025).answer == Answer::Unplanned);
  REQUIRE(Cursor(plan).next(~std::uint64_t{0}).answer == Answer::Unplanned);
}

TEST_CASE("a dynamic slot takes requests that are not larger", "[serve][cursor]") {
  plan::DevicePlan plan = plan_of_units({4, 8, 5}, 0, 3);
  plan.slots[1].kind = plan::SlotKind::Dynamic;
  Cursor cursor(plan);
  REQUIRE(request(cursor, 4) == 0);
  REQUIRE(request(cursor, 3) == 1);
  REQUIRE(request(cursor, 5) == 2);
  REQUIRE(request(cursor, 4) == 0);
  REQUIRE(request(cursor, 9) == kNone);
}

TEST_CASE("requests of varying size keep the position for those that follow", "[serve][cursor]") {
  plan::DevicePlan plan = plan_of_units({4, 8, 30, 9, 5}, 0, 5);
  plan.slots[1].kind = plan::SlotKind::Dynamic;
  plan.slots[2].kind = plan::SlotKind::PassThrough;
  plan.slots[3].kind = plan::SlotKind::Dynamic;
  plan.varying = {2};
  Cursor cursor(plan);
  for (const std::uint64_t vary : {1, 7, 9, 40}) {  // the last two are larger than any recorded size
    REQUIRE(request(cursor, 4) == 0);
    REQUIRE(request(cursor, vary) == (vary <= 8 ? 1 : kNone));
    REQUIRE(cursor.next(vary * plan::kUnitBytes).answer == Answer::Unplanned);
    REQUIRE(request(cursor, vary) == (vary <= 9 ? 3 : kNone));
    REQUIRE(request(cursor, 5) == 4);
  }
  REQUIRE(cursor.resynchronizations() == 0);
}

TEST_CASE("a request of a slot that has no place is unplanned, and others do not take the slot", "[serve][cursor]") {
  plan::DevicePlan plan = plan_of_units({4, 8, 5}, 0, 3);
  plan.slots[1].kind = plan::SlotKind::PassThrough;
  plan.unplaced = {1};
  Cursor cursor(plan);
  for (int i = 0; i < 3; ++i) {
    REQUIRE(request(cursor, 4) == 0);
    if (i == 1) REQUIRE(request(cursor, 7) == kNone);
    REQUIRE(cursor.next(8 * plan::kUnitBytes).answer == Answer::Unplanned);
    REQUIRE_FALSE(cursor.missed());
    REQUIRE(request(cursor, 5) == 2);
  }
}

TEST_CASE("a pass-through slot is used up by its request, and skipped without it", "[serve][cursor]") {
  plan::DevicePlan plan = plan_of_units({4, 8, 5}, 0, 3);
  plan.slots[1].kind = plan::SlotKind::PassThrough;
  Cursor cursor(plan);
  REQUIRE(request(cursor, 4) == 0);
  REQUIRE(cursor.next(8 * plan::kUnitBytes).answer == Answer::Original);
  REQUIRE(request(cursor, 5) == 2);
  REQUIRE(request(cursor, 4) == 0);
  cursor.pass_through(8 * plan::kUnitBytes);  // captured
  REQUIRE(request(cursor, 5) == 2);
  REQUIRE(request(cursor, 4) == 0);
  cursor.pass_through(99 * plan::kUnitBytes);
  REQUIRE(request(cursor, 5) == 2);
  REQUIRE(cursor.resynchronizations() == 0);
}

TEST_CASE("an extra request leaves the cursor where it is", "[serve][cursor]") {
  Cursor cursor(plan_of_units({1, 2, 3, 4, 5, 6}, 0, 6));
  REQUIRE(request(cursor, 1) == 0);
  REQUIRE(request(cursor, 77) == kNone);
  REQUIRE(request(cursor, 2) == 1);
  REQUIRE(request(cursor, 5) == kNone);  // although a slot a little later matches
  REQUIRE(request(cursor, 3) == 2);
  REQUIRE(request(cursor, 4) == 3);
  REQUIRE(cursor.resynchronizations() == 0);
}

TEST_CASE("extra requests that resemble later ones do not move the cursor", "[serve][cursor]") {
  Cursor cursor(plan_of_units({1, 2, 3, 1, 4, 5, 6}, 0, 7));
  REQUIRE(request(cursor, 1) == 0);
  REQUIRE(request(cursor, 4) == kNone);  // slots of 1 and 4 follow each other a little later
  REQUIRE(request(cursor, 2) == 1);
  REQUIRE(request(cursor, 99) == kNone);
  REQUIRE(request(cursor, 6) == kNone);  // two extra requests; the plan has the size of the second
  REQUIRE(request(cursor, 3) == 2);
  REQUIRE(cursor.resynchronizations() == 0);
}

TEST_CASE("missing requests are detected at the second request after them", "[serve][cursor]") {
  Cursor cursor(plan_of_units({1, 2, 3, 4, 5, 6, 7}, 0, 7));
  REQUIRE(request(cursor, 1) == 0);
  REQUIRE(request(cursor, 4) == kNone);
  REQUIRE(request(cursor, 5) == 4);
  REQUIRE(request(cursor, 6) == 5);
  REQUIRE(cursor.resynchronizations() == 1);
}

TEST_CASE("among several later places, the best match is taken", "[serve][cursor]") {
  //                                 x  x  a  b        c  a  b
  Cursor cursor(plan_of_units({1, 2, 8, 9, 4, 5, 6, 7, 3, 4, 5, 10}, 0, 12));
  REQUIRE(request(cursor, 1) == 0);
  REQUIRE(request(cursor, 3) == kNone);
  REQUIRE(request(cursor, 4) == 9);
  REQUIRE(request(cursor, 5) == 10);
  REQUIRE(request(cursor, 10) == 11);
}

TEST_CASE("one missing request is not mistaken for many", "[serve][cursor]") {
  //                                    missing          the same without it
  Cursor cursor(plan_of_units({8, 1, 2, 3, 4, 5, 6, 8, 1, 2, 4, 5, 7}, 0, 13));
  for (const std::uint64_t units : {8, 1, 2}) request(cursor, units);
  REQUIRE(request(cursor, 4) == kNone);
  REQUIRE(request(cursor, 5) == 5);
  REQUIRE(request(cursor, 6) == 6);
}

TEST_CASE("a cursor that has moved wrongly comes back", "[serve][cursor]") {
  Cursor cursor(plan_of_units({1, 2, 3, 4, 5, 6, 7, 8, 9}, 9, 0));
  REQUIRE(request(cursor, 1) == 0);
  REQUIRE(request(cursor, 7) == kNone);
  REQUIRE(request(cursor, 8) == 7);  // two extra requests that look like missing ones
  REQUIRE(request(cursor, 2) == kNone);
  REQUIRE(request(cursor, 3) == 2);
  REQUIRE(request(cursor, 4) == 3);
}

TEST_CASE("after an unknown request, four matching requests move the cursor, and two do not", "[serve][cursor]") {
  Cursor cursor(plan_of_units({7, 8, 1, 2, 3, 4, 5, 6}, 0, 8));
  REQUIRE(request(cursor, 7) == 0);
  for (const std::uint64_t units : {99, 3, 4, 5}) REQUIRE(request(cursor, units) == kNone);
  REQUIRE(request(cursor, 6) == 7);
}

TEST_CASE("four matching requests are found anywhere, unless the cursor must keep its position", "[serve][cursor]") {
  std::vector<std::uint64_t> units(200);
  std::iota(units.begin(), units.end(), 1);
  const bool keeps = GENERATE(false, true);
  Cursor cursor(plan_of_units(units, 100, 100));
  REQUIRE(cursor.is_before_body());
  REQUIRE(request(cursor, 1) == 0);
  for (const std::uint64_t size : {150, 151, 152}) {
    REQUIRE(request(cursor, size) == kNone);
    if (keeps) cursor.keep_place();
  }
  REQUIRE(request(cursor, 153) == (keeps ? kNone : 152));
  REQUIRE(request(cursor, 154) == 153);
  REQUIRE_FALSE(cursor.is_before_body());
}

TEST_CASE("missing requests are detected before requests larger than any recorded one, not before others",
          "[serve][cursor]") {
  plan::DevicePlan plan = plan_of_units({10, 100, 20, 100, 30, 40}, 0, 6);
  for (const std::uint32_t slot : {1U, 3U}) plan.slots[slot].kind = plan::SlotKind::Dynamic;
  for (const auto& [larger, found] : {std::pair(150, 4), std::pair(250, kNone)}) {
    Cursor cursor(plan);
    REQUIRE(request(cursor, 10) == 0);
    request(cursor, 20);  // replaces the missing request
    REQUIRE(request(cursor, static_cast<std::uint64_t>(larger)) == kNone);
    CHECK(request(cursor, 30) == found);
  }
}

TEST_CASE("after any deviation the cursor finds its position again", "[serve][cursor]") {
  const std::uint64_t seed = GENERATE(from_range(seeds(20)));
  const std::vector<std::uint64_t> units = random_units(600, 20, seed);
  Cursor cursor(plan_of_units(units, 100, 400));
  std::mt19937_64 random(seed);
  for (std::size_t i = 0; i < 100; ++i) REQUIRE(request(cursor, units[i]) == static_cast<int>(i));
  for (int deviation = 0; deviation < 10; ++deviation) {
    const std::uint64_t extra = random() % 20;
    for (std::uint64_t i = 0; i < extra; ++i) request(cursor, random() % 25 + 1);
    const std::size_t from = 100 + random() % 400;
    int last = kNone;
    for (std::size_t i = 0; i < 60; ++i) last = request(cursor, units[100 + (from - 100 + i) % 400]);
    REQUIRE(last == static_cast<int>(100 + (from - 100 + 59) % 400));
  }
  REQUIRE(cursor.fits());
}

TEST_CASE("a program that repeats after a plan without a body is recognized", "[serve][cursor]") {
  const std::vector<std::uint64_t> units = random_units(50, 1000, 3);
  Cursor cursor(plan_of_units(units, 50, 0));
  for (std::size_t i = 0; i < 50; ++i) REQUIRE(request(cursor, units[i]) == static_cast<int>(i));
  int last = kNone;
  for (std::size_t i = 0; i < 30; ++i) last = request(cursor, units[i]);
  REQUIRE(last == 29);
}

TEST_CASE("a plan of another program is detected after a thousand requests", "[serve][cursor]") {
  Cursor cursor(plan_of_units(random_units(1000, 50, 1), 0, 1000));
  for (int i = 0; i < 999; ++i) request(cursor, 1000 + static_cast<std::uint64_t>(i) % 7);
  REQUIRE(cursor.fits());
  request(cursor, 1000);
  REQUIRE_FALSE(cursor.fits());
}

TEST_CASE("the first difference from the plan is remembered", "[serve][cursor]") {
  Cursor cursor(plan_of_units({4, 7, 9}, 0, 0));
  request(cursor, 4);
  REQUIRE_FALSE(cursor.first_difference());
  request(cursor, 8);
  request(cursor, 3);
  REQUIRE(cursor.first_difference());
  REQUIRE(cursor.first_difference()->request == 2);
  REQUIRE(cursor.first_difference()->bytes == 8 * plan::kUnitBytes);
  REQUIRE(cursor.first_difference()->expected == 7 * plan::kUnitBytes);

  Cursor ended(plan_of_units({4}, 0, 0));
  request(ended, 4);
  request(ended, 4);
  REQUIRE(ended.first_difference());
  REQUIRE(ended.first_difference()->expected == 0);
}

TEST_CASE("a plan that stops fitting is detected, and a long evaluation is not mistaken for that", "[serve][cursor]") {
  const std::vector<std::uint64_t> units = random_units(100, 50, 2);
  Cursor cursor(plan_of_units(units, 0, 100));
  const auto train = [&](int requests) {
    for (int i = 0; i < requests; ++i) request(cursor, units[static_cast<std::size_t>(i) % units.size()]);
  };
  const auto evaluate = [&](int requests) {
    for (int i = 0; i < requests; ++i) request(cursor, 1000);
  };
  train(1000);
  for (int round = 0; round < 5; ++round) {
    evaluate(80'000);
    train(20'000);
  }
  REQUIRE(cursor.fits());
  evaluate(200'000);
  REQUIRE_FALSE(cursor.fits());
}

namespace {

// Slots 0, 2 and 3 have places, the slot between them varies and has none. The body is one slot for any request.
plan::DevicePlan plan_of_beginning() {
  plan::DevicePlan plan = plan_of_units({10, 1, 20, 30, 1}, 4, 1);
  for (const std::uint32_t slot : {1U, 4U}) {
    plan.slots[slot].kind = plan::SlotKind::PassThrough;
    plan.varying.push_back(slot);
  }
  return plan;
}

}  // namespace

TEST_CASE("a plan of the beginning only serves nothing after it, and is not dropped", "[serve][cursor]") {
  Cursor cursor(plan_of_beginning());
  REQUIRE(request(cursor, 10) == 0);
  REQUIRE(request(cursor, 777) == kNone);
  REQUIRE(request(cursor, 20) == 2);
  REQUIRE(request(cursor, 555) == kNone);  // one request more than was recorded
  REQUIRE(request(cursor, 30) == 3);
  for (const std::uint64_t units : random_units(300'000, 40, 4)) {
    const Cursor::Next step = cursor.next(units * plan::kUnitBytes);
    if (step.answer != Answer::Unplanned) FAIL("not left to the dynamic sub-allocator");
  }
  REQUIRE(cursor.fits());
  REQUIRE(cursor.resynchronizations() == 0);
}

TEST_CASE("a plan of the beginning of another program is detected", "[serve][cursor]") {
  Cursor cursor(plan_of_beginning());
  for (int i = 0; i < 1000; ++i) request(cursor, 1000 + static_cast<std::uint64_t>(i) % 7);
  REQUIRE_FALSE(cursor.fits());
}
