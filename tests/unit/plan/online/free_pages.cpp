// SPDX-License-Identifier: Apache-2.0
// Bits of free pages, compared with the free bytes that they stand for.
#include "plan/online/free_pages.h"

#include <algorithm>
#include <random>
#include <vector>

#include "catch.h"
#include "plan/placement/free_space.h"
#include "plan/placement/stitched_view.h"
#include "plan/placement/units.h"

using namespace stalloc::plan;

TEST_CASE("no view that has a free stretch is passed over, and most that have none are", "[online]") {
  constexpr std::uint64_t kPage = 8 * kUnitBytes;
  constexpr std::uint64_t kPages = 400;
  const auto seed = GENERATE(range(1U, 6U));
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto below = [&](std::uint64_t bound) { return random() % bound; };
  FreeSpace space;
  FreePages pages(kPages * kPage, kPage);
  std::uint64_t fit = 0;
  std::uint64_t passed_over = 0;
  std::uint64_t looked_at = 0;  // without need
  for (int step = 0; step < 3000; ++step) {
    const std::uint64_t begin = below(kPages * kPage / kUnitBytes) * kUnitBytes;
    const Range range{begin, std::min(kPages * kPage, begin + (1 + below(12 * 8)) * kUnitBytes)};
    if (below(5) < 3) {
      pages.give(range, space.add(range));
    } else {
      space.subtract(range);
      pages.take(range);
    }
    std::vector<Range> pieces;
    for (std::uint64_t i = 0; i < 1 + below(8); ++i) {
      const std::uint64_t first = below(kPages - 70);
      pieces.push_back({first * kPage, (first + 1 + below(70)) * kPage});
    }
    for (const Range& piece : pieces) REQUIRE(pages.holds(piece) == space.contains(piece));
    const StitchedView view(pieces);
    const std::uint64_t bytes = (1 + below(view.bytes() / kUnitBytes)) * kUnitBytes;
    const bool fits =
        view.shortest_free(bytes, kUnitBytes, [&](const Range&) -> const FreeSpace& { return space; }).bytes() > 0;
    const bool may = pages.may_hold(pieces, view.bytes(), bytes);
    REQUIRE((may || !fits));
    fit += fits ? 1 : 0;
    passed_over += may ? 0 : 1;
    looked_at += may && !fits ? 1 : 0;
  }
  CAPTURE(fit, passed_over, looked_at);
  REQUIRE(fit > 100);
  REQUIRE(passed_over > 10 * looked_at);
}
