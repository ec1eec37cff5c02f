// SPDX-License-Identifier: Apache-2.0
// Views from which parts are cut, compared with a plain list of what each unit shows.
#include "plan/placement/stitched_view.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "catch.h"
#include "plan/placement/units.h"

using namespace stalloc::plan;

namespace {

constexpr std::uint64_t kHole = ~std::uint64_t{0};

// The longest stretch of units without a hole, in units.
std::size_t longest_shown(const std::vector<std::uint64_t>& units) {
  std::size_t longest = 0;
  std::size_t run = 0;
  for (const std::uint64_t unit : units) longest = std::max(longest, run = unit == kHole ? 0 : run + 1);
  return longest;
}

}  // namespace

TEST_CASE("where a view was cut, it shows nothing; all else stays at its place", "[placement]") {
  const auto seed = GENERATE(range(1U, 9U));
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto below = [&](std::uint64_t bound) { return random() % bound; };
  FreeSpace all;
  all.add({0, std::uint64_t{1} << 40});
  const auto space_of = [&](const Range&) -> const FreeSpace& { return all; };
  int with_holes = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<Range> pieces;
    std::vector<std::uint64_t> units;  // of physical memory, or kHole
    for (std::uint64_t i = 0; i < 1 + below(6); ++i) {
      const std::uint64_t first = 100 * i + below(50);
      const std::uint64_t count = 1 + below(9);
      pieces.push_back({first * kUnitBytes, (first + count) * kUnitBytes});
      for (std::uint64_t unit = first; unit < first + count; ++unit) units.push_back(unit);
    }
    StitchedView view(pieces);
    for (std::uint64_t cuts = below(5); cuts > 0 && !units.empty(); --cuts) {
      const std::uint64_t begin = below(units.size());
      const std::uint64_t end = begin + 1 + below(units.size() - begin);
      view.cut({begin * kUnitBytes, end * kUnitBytes});
      for (std::uint64_t unit = begin; unit < end; ++unit) units[unit] = kHole;
      while (!units.empty() && units.back() == kHole) units.pop_back();
    }
    REQUIRE(view.bytes() == units.size() * kUnitBytes);
    REQUIRE(view.has_holes() == (std::ranges::count(units, kHole) > 0));
    with_holes += view.has_holes() ? 1 : 0;
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      if (units[unit] == kHole) continue;
      std::vector<Range> shown;
      view.translate(unit * kUnitBytes, kUnitBytes, shown);
      REQUIRE(shown == std::vector<Range>{{units[unit] * kUnitBytes, (units[unit] + 1) * kUnitBytes}});
    }
    const std::size_t longest = longest_shown(units);
    const Range found = view.shortest_free(std::max<std::size_t>(longest, 1) * kUnitBytes, kUnitBytes, space_of);
    REQUIRE(found.bytes() == longest * kUnitBytes);
    for (std::uint64_t at = found.begin; at < found.end; at += kUnitBytes) REQUIRE(units[at / kUnitBytes] != kHole);
    REQUIRE(view.shortest_free((longest + 1) * kUnitBytes, kUnitBytes, space_of).bytes() == 0);
  }
  REQUIRE(with_holes > 20);
}
