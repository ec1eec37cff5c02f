// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/planned/arena.h"

#include <string>
#include <vector>

#include "catch.h"
#include "fake_driver.h"
#include "plans.h"

using namespace stalloc;
using namespace stalloc::test;
using serve::Arena;
using serve::PhysicalRange;

namespace {

// Handles of 1, 2 and 3 pages, and a view of the last and the first.
plan::DevicePlan stitched_plan() {
  plan::DevicePlan plan = plan_of_handles({1, 2, 3});
  add_view(&plan, {2, 0});
  add_view(&plan, {1});
  return plan;
}

std::vector<PhysicalRange> ranges_of(const Arena& arena, std::uint32_t view, std::uint64_t offset,
                                     std::uint64_t bytes) {
  std::vector<PhysicalRange> ranges;
  arena.append_ranges(view, offset, bytes, &ranges);
  return ranges;
}

}  // namespace

TEST_CASE("views lie one after another and show the handles of the plan", "[serve][arena]") {
  FakeDriver driver(kPage);
  std::string why;
  const auto arena = Arena::create(driver, stitched_plan(), &why);
  REQUIRE(arena);
  const CUdeviceptr home = arena->address(0, 0);
  REQUIRE(arena->address(1, 0) == home + 6 * kPage);
  REQUIRE(arena->address(2, 512) == home + 10 * kPage + 512);
  REQUIRE(driver.physical(arena->address(1, 0)) == driver.physical(arena->address(0, 3 * kPage)));
  REQUIRE(driver.physical(arena->address(1, 3 * kPage + 512)) == driver.physical(arena->address(0, 512)));
  REQUIRE(driver.physical(arena->address(2, kPage)) == driver.physical(arena->address(0, 2 * kPage)));
  REQUIRE(arena->contains(home));
  REQUIRE(arena->contains(home + 12 * kPage - 1));
  REQUIRE_FALSE(arena->contains(home + 12 * kPage));
  REQUIRE_FALSE(arena->contains(home - 1));
  REQUIRE(arena->physical_bytes() == 6 * kPage);
  REQUIRE(arena->mapping_calls() == 3 + 6 + 1);
}

TEST_CASE("ranges of a view are the physical ranges of its bytes", "[serve][arena]") {
  FakeDriver driver(kPage);
  std::string why;
  const auto arena = Arena::create(driver, stitched_plan(), &why);
  REQUIRE(arena);
  REQUIRE(ranges_of(*arena, 0, 512, 5 * kPage) == std::vector<PhysicalRange>{{512, 5 * kPage + 512}});
  REQUIRE(ranges_of(*arena, 1, 0, 4 * kPage) == std::vector<PhysicalRange>{{3 * kPage, 6 * kPage}, {0, kPage}});
  REQUIRE(ranges_of(*arena, 1, kPage, kPage) == std::vector<PhysicalRange>{{4 * kPage, 5 * kPage}});
  REQUIRE(ranges_of(*arena, 1, 3 * kPage - 512, 1024) ==
          std::vector<PhysicalRange>{{6 * kPage - 512, 6 * kPage}, {0, 512}});
}

TEST_CASE("an arena releases everything", "[serve][arena]") {
  FakeDriver driver(kPage);
  std::string why;
  { REQUIRE(Arena::create(driver, stitched_plan(), &why)); }
  REQUIRE(driver.is_clean());
}

TEST_CASE("whichever call fails, everything is released and the reason is given", "[serve][arena]") {
  FakeDriver counting(kPage);
  std::string why;
  Arena::create(counting, stitched_plan(), &why);
  const auto calls_to_create = 1 + 1 + 3 + 6 + 1;
  for (std::uint64_t call = 1; call <= calls_to_create; ++call) {
    FakeDriver driver(kPage);
    driver.fail_at(call);
    why.clear();
    INFO("call " << call);
    REQUIRE_FALSE(Arena::create(driver, stitched_plan(), &why));
    REQUIRE_FALSE(why.empty());
    REQUIRE(why.find('\n') == std::string::npos);
    REQUIRE(driver.is_clean());
  }
  FakeDriver driver(kPage);
  driver.fail_at(calls_to_create + 1);
  REQUIRE(Arena::create(driver, stitched_plan(), &why));
}

TEST_CASE("a plan larger than the device is refused with both sizes", "[serve][arena]") {
  FakeDriver driver(kPage, 5 * kPage);
  std::string why;
  REQUIRE_FALSE(Arena::create(driver, stitched_plan(), &why));
  REQUIRE(why.find("GiB free") != std::string::npos);
  REQUIRE(driver.is_clean());
}

TEST_CASE("a plan whose pages differ from the device's is refused", "[serve][arena]") {
  FakeDriver driver(4 * kPage);
  std::string why;
  REQUIRE_FALSE(Arena::create(driver, stitched_plan(), &why));
  REQUIRE(why.find(std::to_string(kPage)) != std::string::npos);
}

TEST_CASE("peers get access to every view", "[serve][arena]") {
  FakeDriver driver(kPage);
  std::string why;
  const auto arena = Arena::create(driver, stitched_plan(), &why);
  REQUIRE(arena);
  REQUIRE(arena->grant_access(3) == CUDA_SUCCESS);
  REQUIRE_NOTHROW(driver.physical(arena->address(0, 0), 3));
  REQUIRE_NOTHROW(driver.physical(arena->address(2, kPage), 3));
  REQUIRE_NOTHROW(driver.physical(arena->address(2, kPage), 0));
  const std::uint64_t calls = arena->mapping_calls();
  REQUIRE(arena->grant_access(3) == CUDA_SUCCESS);
  REQUIRE(arena->mapping_calls() == calls);
  driver.fail_at(1);
  REQUIRE(arena->grant_access(4) != CUDA_SUCCESS);
  REQUIRE(arena->grant_access(4) == CUDA_SUCCESS);
}

TEST_CASE("a released handle is unmapped everywhere and its memory is freed", "[serve][arena]") {
  FakeDriver driver(kPage);
  std::string why;
  {
    const auto arena = Arena::create(driver, stitched_plan(), &why);
    REQUIRE(arena);
    REQUIRE(arena->release_handle(2) == 3 * kPage);
    REQUIRE(arena->release_handle(2) == 0);
    REQUIRE(arena->physical_bytes() == 3 * kPage);
    REQUIRE_THROWS_AS(driver.physical(arena->address(0, 3 * kPage)), FakeDriver::Misuse);
    REQUIRE_THROWS_AS(driver.physical(arena->address(1, 0)), FakeDriver::Misuse);
    REQUIRE_NOTHROW(driver.physical(arena->address(1, 3 * kPage)));
    REQUIRE(arena->grant_access(1) == CUDA_SUCCESS);
  }
  REQUIRE(driver.is_clean());
}

TEST_CASE("a handle that the driver refuses to unmap stays in the home view", "[serve][arena]") {
  FakeDriver driver(kPage);
  std::string why;
  {
    const auto arena = Arena::create(driver, stitched_plan(), &why);
    REQUIRE(arena);
    driver.fail_at(1);
    REQUIRE(arena->release_handle(1) == 0);
    REQUIRE(arena->is_whole());
    REQUIRE_NOTHROW(driver.physical(arena->address(2, 0)));
    driver.fail_at(2);
    REQUIRE(arena->release_handle(1) == 0);
    REQUIRE_FALSE(arena->is_whole());
    REQUIRE(arena->is_held(1));
    REQUIRE_THROWS_AS(driver.physical(arena->address(2, 0)), FakeDriver::Misuse);
    REQUIRE_NOTHROW(driver.physical(arena->address(0, kPage)));
    REQUIRE(arena->release_handle(1) == 2 * kPage);  // nothing is unmapped twice
    driver.fail_at(3);                               // the release is tried again
    REQUIRE(arena->release_handle(0) == kPage);
    REQUIRE_FALSE(arena->is_held(0));
    driver.fail_at(1);  // and so is all that `close` does
  }
  REQUIRE(driver.is_clean());
}

TEST_CASE("a handle that the driver refuses to release twice is released when the arena is closed", "[serve][arena]") {
  FakeDriver driver(kPage);
  std::string why;
  const auto arena = Arena::create(driver, stitched_plan(), &why);
  REQUIRE(arena);
  driver.fail_at(3, CUDA_ERROR_UNKNOWN, 2);
  REQUIRE(arena->release_handle(0) == kPage);
  REQUIRE_FALSE(arena->is_held(0));
  driver.fail_at(0);
  arena->close();
  REQUIRE(driver.holds_no_memory());
}
