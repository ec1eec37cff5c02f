// SPDX-License-Identifier: Apache-2.0
#include "plan/follow/gap.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "catch.h"
#include "tests/unit/seeds.h"

using namespace stalloc::plan;

namespace {

FreeSpace free_space(const std::vector<Range>& ranges) {
  FreeSpace free;
  for (const Range& range : ranges) free.add(range);
  return free;
}

}  // namespace

TEST_CASE("a gap is the smallest part that no following slot needs while the request lives", "[plan][gap]") {
  const FreeSpace free = free_space({{0, 10}, {20, 26}, {30, 50}});
  const std::array<Range, 3> slots{Range{20, 22}, Range{0, 4}, Range{32, 50}};
  const auto gap = [&](std::uint64_t bytes, std::uint64_t lives) {
    return GapFinder().find(free, bytes, lives,
                            [&](std::uint64_t later) { return std::span(&slots.at(later - 1), 1); });
  };
  REQUIRE(gap(5, 1) == Range{20, 25});  // freed before the next slot begins
  REQUIRE(gap(5, 2) == Range{0, 5});
  REQUIRE(gap(5, 3) == Range{4, 9});
  REQUIRE(gap(7, 3) == Range{30, 37});
  REQUIRE_FALSE(gap(7, 4));
  REQUIRE(gap(4, 4) == Range{22, 26});
  REQUIRE_FALSE(gap(21, 1));
}

TEST_CASE("each request allows a few more slots to be looked at", "[plan][gap]") {
  const FreeSpace free = free_space({{0, 10}});
  std::uint64_t looked_at = 0;
  const auto ranges_of = [&](std::uint64_t) {
    ++looked_at;
    return std::span<const Range>();
  };
  GapFinder gaps;
  constexpr std::uint64_t kLives = 10'001;
  std::uint64_t found = 0;
  while (gaps.find(free, 1, kLives, ranges_of)) REQUIRE(++found < 1000);
  REQUIRE(found > 0);
  REQUIRE(looked_at == found * (kLives - 1));
  REQUIRE(gaps.may_search(1));
  REQUIRE_FALSE(gaps.may_search(kLives));
  REQUIRE(gaps.find(free, 1, 1, ranges_of));  // a search that looks at no slot
  REQUIRE_FALSE(gaps.find(free, 1, kLives, ranges_of));
  std::uint64_t requests = 0;
  for (; !gaps.find(free, 1, kLives, ranges_of); gaps.note_request()) REQUIRE(++requests < kLives);
  REQUIRE(looked_at == (found + 1) * (kLives - 1));
  REQUIRE_FALSE(gaps.find(free, 1, kLives, ranges_of));
}

TEST_CASE("a gap is free, and there is one where a naive search finds one", "[plan][gap]") {
  for (const unsigned seed : stalloc::seeds(200)) {
    std::mt19937_64 random(seed);
    constexpr std::uint64_t kBytes = 64;
    const auto range = [&](std::uint64_t most) {
      const std::uint64_t begin = random() % kBytes;
      return Range{begin, std::min(kBytes, begin + 1 + random() % most)};
    };
    std::vector<bool> usable(kBytes);
    FreeSpace free;
    for (int i = 0; i < 6; ++i) {
      const Range added = range(16);
      for (std::uint64_t at = added.begin; at < added.end; ++at) {
        if (usable[at]) continue;
        usable[at] = true;
        free.add({at, at + 1});
      }
    }
    const std::uint64_t lives = 1 + random() % 8;
    std::vector<std::vector<Range>> slots(lives);  // each of up to two ranges
    for (std::vector<Range>& slot : slots) {
      for (std::uint64_t i = random() % 3; i > 0; --i) slot.push_back(range(8));
    }
    for (std::uint64_t later = 1; later < lives; ++later) {
      for (const Range& taken : slots[later]) std::fill_n(usable.begin() + taken.begin, taken.bytes(), false);
    }
    const std::uint64_t bytes = 1 + random() % 12;
    const auto gap =
        GapFinder().find(free, bytes, lives, [&](std::uint64_t later) { return std::span<const Range>(slots[later]); });
    CAPTURE(seed, bytes, lives);
    REQUIRE(gap.has_value() == (std::search_n(usable.begin(), usable.end(), bytes, true) != usable.end()));
    if (!gap) continue;
    REQUIRE(gap->bytes() == bytes);
    for (std::uint64_t at = gap->begin; at < gap->end; ++at) REQUIRE(usable[at]);
  }
}
