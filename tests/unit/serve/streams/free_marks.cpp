// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/streams/free_marks.h"

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "catch.h"
#include "plan/placement/units.h"

using namespace stalloc::serve;

namespace {

constexpr std::uint64_t kUnit = stalloc::plan::kUnitBytes;
constexpr std::uint64_t kPage = 64 * kUnit;
constexpr std::uint64_t kPages = 600;  // more than are compared at once

// Says for each unit who freed it last and by which free, and for each page the latest free of each mark.
struct Model {
  struct Free {
    FreeMark mark = kNoStream;
    std::uint64_t number = 0;
  };
  std::vector<Free> units{kPages * kPage / kUnit};
  std::vector<std::map<FreeMark, std::uint64_t>> pages{kPages};

  void freed(PhysicalRange range, FreeMark mark, std::uint64_t number) {
    for (std::uint64_t unit = range.begin / kUnit; unit < range.end / kUnit; ++unit) units[unit] = {mark, number};
    for (std::uint64_t page = range.begin / kPage; page * kPage < range.end; ++page) pages[page][mark] = number;
  }
};

// Ends on pages, within one page, or anywhere.
PhysicalRange random_range(std::mt19937& random) {
  const std::uint64_t grain = random() % 3 == 0 ? kPage : kUnit;
  const std::uint64_t most = (random() % 2 == 0 ? 2 : kPages) * kPage / grain;
  const std::uint64_t count = 1 + random() % most;
  const std::uint64_t begin = random() % (kPages * kPage / grain - count + 1);
  return {begin * grain, (begin + count) * grain};
}

}  // namespace

TEST_CASE("who freed bytes is never forgotten, and of two streams the page's latest free of each is told",
          "[serve][marks]") {
  const auto seed = GENERATE(range(1U, 4U));
  const auto marks = GENERATE(1U, 2U, 3U, 12U);  // the last: more than are told once
  CAPTURE(seed, marks);
  std::mt19937 random(seed);
  FreeMarks table(kPages * kPage, kPage);
  Model model;
  for (std::uint64_t number = 1; number <= 120; ++number) {
    CAPTURE(number);
    const PhysicalRange freed = random_range(random);
    const auto mark = static_cast<FreeMark>(1 + random() % marks);
    if (random() % 8 == 0) {
      table.cleared({&freed, 1});
      model.freed(freed, kNoStream, 0);
    } else {
      table.freed({&freed, 1}, mark, number);
      model.freed(freed, mark, number);
    }

    const std::vector<PhysicalRange> asked{random_range(random), random_range(random)};
    const auto own = static_cast<FreeMark>(random() % (marks + 1));
    std::map<FreeMark, std::uint64_t> claims;
    table.for_each_claim(asked, own, [&](FreeMark claimed, std::uint64_t sequence) {
      REQUIRE(claimed != own);
      REQUIRE(claimed != kNoStream);
      claims[claimed] = std::max(claims[claimed], sequence);
    });
    REQUIRE((!table.only(asked, own) || claims.empty()));
    std::map<FreeMark, std::uint64_t> latest;  // in the pages that were asked for
    for (const PhysicalRange& range : asked) {
      for (std::uint64_t unit = range.begin / kUnit; unit < range.end / kUnit; ++unit) {
        const Model::Free& free = model.units[unit];
        if (free.mark == kNoStream || free.mark == own) continue;
        if (!claims.contains(free.mark) || claims[free.mark] < free.number) FAIL("a free was forgotten");
      }
      for (std::uint64_t page = range.begin / kPage; page * kPage < range.end; ++page) {
        for (const auto& [by, at] : model.pages[page]) latest[by] = std::max(latest[by], at);
      }
    }
    if (marks > 2) continue;
    for (const auto& [by, at] : claims) REQUIRE(at <= latest[by]);
  }
}
