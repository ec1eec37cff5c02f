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

namespace {

constexpr std::uint64_t kPage = 8 * kUnitBytes;
constexpr std::uint64_t kPages = 400;

// Random pages of which some are free, as bits and as the free bytes that the bits stand for.
struct RandomPages {
  explicit RandomPages(unsigned seed) : random(seed) {}
  std::uint64_t below(std::uint64_t bound) { return random() % bound; }
  // Gives or takes up to twelve pages.
  void change() {
    const std::uint64_t begin = below(kPages * kPage / kUnitBytes) * kUnitBytes;
    const Range range{begin, std::min(kPages * kPage, begin + (1 + below(12 * 8)) * kUnitBytes)};
    if (below(5) < 3) {
      pages.give(range, space.add(range));
    } else {
      space.subtract(range);
      pages.take(range);
    }
  }
  std::vector<Range> pieces() {
    std::vector<Range> pieces;
    const std::uint64_t count = 1 + below(8);
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t first = below(kPages - 70);
      pieces.push_back({first * kPage, (first + 1 + below(70)) * kPage});
    }
    return pieces;
  }
  // A size of at most so many bytes.
  std::uint64_t size(std::uint64_t most) { return (1 + below(most / kUnitBytes)) * kUnitBytes; }
  [[nodiscard]] bool fits(const StitchedView& view, std::uint64_t bytes) const {
    return view.shortest_free(bytes, kUnitBytes, [&](const Range&) -> const FreeSpace& { return space; }).bytes() > 0;
  }

  std::mt19937 random;
  FreeSpace space;
  FreePages pages{kPages * kPage, kPage};
};

}  // namespace

TEST_CASE("no view that has a free stretch is passed over, and most that have none are", "[online]") {
  const auto seed = GENERATE(range(1U, 6U));
  CAPTURE(seed);
  RandomPages random(seed);
  std::uint64_t fit = 0;
  std::uint64_t passed_over = 0;
  std::uint64_t looked_at = 0;  // without need
  for (int step = 0; step < 3000; ++step) {
    random.change();
    const std::vector<Range> pieces = random.pieces();
    for (const Range& piece : pieces) REQUIRE(random.pages.holds(piece) == random.space.contains(piece));
    const StitchedView view(pieces);
    const std::uint64_t bytes = random.size(view.bytes());
    const bool fits = random.fits(view, bytes);
    FreePages::Obstacles obstacles;
    const bool may = random.pages.may_hold(pieces, view.bytes(), bytes, &obstacles);
    REQUIRE((may || !fits));
    fit += fits ? 1 : 0;
    passed_over += may ? 0 : 1;
    looked_at += may && !fits ? 1 : 0;
  }
  CAPTURE(fit, passed_over, looked_at);
  REQUIRE(fit > 100);
  REQUIRE(passed_over > 10 * looked_at);
}

TEST_CASE("what was noted about a view when it was searched in vain never hides a free stretch", "[online]") {
  const auto seed = GENERATE(range(1U, 6U));
  CAPTURE(seed);
  RandomPages random(seed);
  struct Searched {
    StitchedView view;
    FreePages::Obstacles obstacles{};
  };
  std::vector<Searched> views;
  for (int i = 0; i < 12; ++i) views.push_back({StitchedView(random.pieces())});
  std::uint64_t noted = 0;  // searches that end with obstacles
  for (int step = 0; step < 6000; ++step) {
    random.change();
    Searched& searched = views[random.below(views.size())];
    if (random.below(100) == 0) {
      const std::uint64_t first = random.below(searched.view.bytes() / kPage);
      const std::uint64_t end = std::min(searched.view.bytes() / kPage, first + 1 + random.below(5));
      if (end - first < searched.view.bytes() / kPage) searched.view.cut({first * kPage, end * kPage});
    }
    const std::vector<Range>& pieces = searched.view.pieces();
    const std::uint64_t shown = searched.view.bytes();
    const std::uint64_t bytes = random.size(shown);
    const bool may = random.pages.may_hold(pieces, shown, bytes, &searched.obstacles);
    REQUIRE((may || !random.fits(searched.view, bytes)));
    if (!searched.view.has_holes()) {
      FreePages::Obstacles none;
      REQUIRE(may == random.pages.may_hold(pieces, shown, bytes, &none));
    }
    noted += searched.obstacles.count > 0 ? 1 : 0;
  }
  REQUIRE(noted > 3000);
}
