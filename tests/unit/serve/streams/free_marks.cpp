// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/streams/free_marks.h"

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "catch.h"
#include "host_memory.h"
#include "plan/placement/units.h"

using namespace stalloc::serve;

namespace {

constexpr std::uint64_t kUnit = stalloc::plan::kUnitBytes;
constexpr std::uint64_t kPage = 64 * kUnit;
constexpr std::uint64_t kPages = 600;  // more marks than are compared at once

// A simple model: the stream and the number of the latest free of each unit, and the latest free of each page.
struct Model {
  struct Free {
    FreeMark mark = kNoStream;
    std::uint64_t number = 0;
  };
  std::vector<Free> units{kPages * kPage / kUnit};
  std::vector<std::uint64_t> pages = std::vector<std::uint64_t>(kPages);

  void freed(PhysicalRange range, FreeMark mark, std::uint64_t number) {
    for (std::uint64_t unit = range.begin / kUnit; unit < range.end / kUnit; ++unit) units[unit] = {mark, number};
    for (std::uint64_t page = range.begin / kPage; page * kPage < range.end; ++page) {
      pages[page] = std::max(pages[page], number);
    }
  }
};

// A range of whole pages, within one page, or of any units.
PhysicalRange random_range(std::mt19937& random) {
  const std::uint64_t grain = random() % 3 == 0 ? kPage : kUnit;
  const std::uint64_t most = (random() % 2 == 0 ? 2 : kPages) * kPage / grain;
  const std::uint64_t count = 1 + random() % most;
  const std::uint64_t begin = random() % (kPages * kPage / grain - count + 1);
  return {begin * grain, (begin + count) * grain};
}

}  // namespace

TEST_CASE("the stream that freed bytes is always known, and an exact number is a free of these bytes",
          "[serve][marks]") {
  const auto seed = GENERATE(range(1U, 4U));
  const auto marks = GENERATE(1U, 2U, 3U, 12U);  // the last: more marks than are collected
  const bool poor = GENERATE(false, true);       // the host has too little memory
  CAPTURE(seed, marks, poor);
  std::mt19937 random(seed);
  FreeMarks table(kPages * kPage, kPage);
  Model model;
  for (std::uint64_t number = 1; number <= 120; ++number) {
    CAPTURE(number);
    const PhysicalRange freed = random_range(random);
    const auto mark = static_cast<FreeMark>(1 + random() % marks);
    const bool clears = random() % 8 == 0;
    stalloc::test::allocations_left = poor ? random() % 3 : 0;
    if (clears) {
      table.clear({&freed, 1});
    } else {
      table.mark({&freed, 1}, mark, number);
    }
    stalloc::test::allocations_left = 0;
    model.freed(freed, clears ? kNoStream : mark, clears ? 0 : number);

    const std::vector<PhysicalRange> wanted{random_range(random), random_range(random)};
    const auto own = static_cast<FreeMark>(random() % (marks + 1));
    std::map<FreeMark, FreeMarks::Latest> claims;
    table.for_each_claim(wanted, own, [&](FreeMark claimed, FreeMarks::Latest free) {
      REQUIRE(claimed != own);
      REQUIRE(claimed != kNoStream);
      FreeMarks::Latest& known = claims[claimed];
      if (free.sequence > known.sequence) known = free;
    });
    REQUIRE((!table.has_only(wanted, own) || claims.empty()));
    std::map<FreeMark, std::uint64_t> latest;  // of the requested bytes
    std::uint64_t latest_in_pages = 0;
    for (const PhysicalRange& range : wanted) {
      for (std::uint64_t unit = range.begin / kUnit; unit < range.end / kUnit; ++unit) {
        const Model::Free& free = model.units[unit];
        if (free.mark != kNoStream && free.mark != own) latest[free.mark] = std::max(latest[free.mark], free.number);
      }
      for (std::uint64_t page = range.begin / kPage; page * kPage < range.end; ++page) {
        latest_in_pages = std::max(latest_in_pages, model.pages[page]);
      }
    }
    for (const auto& [by, at] : latest) {
      if (std::max(claims[by].sequence, claims[kEveryStreamMark].sequence) < at) FAIL("a free was forgotten");
    }
    for (const auto& [by, free] : claims) {
      if (poor) break;  // some bytes keep the marks of earlier frees, or get those of others
      REQUIRE(free.sequence <= latest_in_pages);
      if (free.exact) REQUIRE(free.sequence == latest[by]);
    }
  }
}

TEST_CASE("neighbors that share a page are distinguished", "[serve][marks]") {
  FreeMarks table(4 * kPage, kPage);
  table.keep_parts();
  const auto latest = [&](std::uint64_t begin, std::uint64_t end) {
    const PhysicalRange wanted{begin * kUnit, end * kUnit};
    FreeMarks::Latest found;
    table.for_each_claim({&wanted, 1}, 2, [&](FreeMark, FreeMarks::Latest free) { found = free; });
    return found;
  };
  const auto free = [&](std::uint64_t begin, std::uint64_t end, std::uint64_t number, bool exact = true) {
    const PhysicalRange freed{begin * kUnit, end * kUnit};
    table.mark({&freed, 1}, 1, number, exact);
  };
  free(0, 100, 1);  // a page and a part of the next one
  free(100, 192, 2);
  REQUIRE(latest(0, 100).sequence == 1);
  REQUIRE(latest(64, 100).sequence == 1);
  REQUIRE(latest(100, 130).sequence == 2);
  REQUIRE(latest(192, 256).sequence == 0);  // never freed
  REQUIRE(latest(90, 130).sequence == 2);
  for (std::uint64_t i = 0; i < 13; ++i) free(64 + i, 65 + i, 3 + i, i > 1);
  REQUIRE(latest(80, 100).exact);
  REQUIRE(latest(80, 100).sequence == 1);

  // More runs than are kept apart: the two earliest neighbors without an event are joined, so their number is a bound.
  free(100, 101, 16);
  REQUIRE_FALSE(latest(64, 65).exact);
  REQUIRE(latest(64, 65).sequence == 4);
  REQUIRE(latest(80, 100).exact);
  REQUIRE(latest(80, 100).sequence == 1);
  for (std::uint64_t i = 2; i < 13; ++i) {
    REQUIRE(latest(64 + i, 65 + i).exact);
    REQUIRE(latest(64 + i, 65 + i).sequence == 3 + i);
  }

  free(64, 128, 17);  // the whole page
  REQUIRE(latest(70, 100).exact);
  REQUIRE(latest(70, 100).sequence == 17);
}
