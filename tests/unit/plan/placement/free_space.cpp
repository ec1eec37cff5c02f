// SPDX-License-Identifier: Apache-2.0
// Hundreds of free ranges, compared with a naive set of bytes.
#include "plan/placement/free_space.h"

#include <algorithm>
#include <array>
#include <random>
#include <vector>

#include "catch.h"

using namespace stalloc::plan;

namespace {

std::vector<Range> ranges_of(const std::vector<bool>& bytes) {
  std::vector<Range> ranges;
  for (std::uint64_t i = 0; i < bytes.size(); ++i) {
    if (!bytes[i]) continue;
    if (ranges.empty() || ranges.back().end != i) ranges.push_back({i, i});
    ++ranges.back().end;
  }
  return ranges;
}

std::vector<Range> ranges_of(const FreeSpace& space) {
  std::vector<Range> ranges;
  for (const auto& [begin, end] : space.ranges()) ranges.push_back({begin, end});
  return ranges;
}

std::vector<Range> backwards(const FreeSpace& space) {
  std::vector<Range> ranges;
  for (auto at = space.ranges().rbegin(); at != space.ranges().rend(); ++at) ranges.push_back({at->first, at->second});
  return ranges;
}

// Pre: something is free at or after `at`.
Range first_from(const FreeSpace& space, std::uint64_t at) {
  const auto [begin, end] = *space.from(at);
  return {begin, end};
}

bool is_smaller(const Range& a, const Range& b) {
  return a.bytes() != b.bytes() ? a.bytes() < b.bytes() : a.begin < b.begin;
}

}  // namespace

TEST_CASE("hundreds of free ranges are found by address and by size") {
  constexpr std::uint64_t kBytes = 4000;
  std::mt19937 random(5);
  FreeSpace space;
  std::vector<bool> naive(kBytes, false);
  std::size_t most = 0;
  for (int step = 0; step < 6000; ++step) {
    const std::uint64_t begin = random() % kBytes;
    const std::uint64_t longest = step % 500 == 0 ? kBytes : 9;  // now and then a large one, over many ranges
    const Range range{begin, std::min(kBytes, begin + random() % longest)};
    const bool add = random() % 2 == 0;
    if (add) {
      space.add(range);
    } else {
      space.subtract(range);
    }
    std::fill(naive.begin() + static_cast<std::ptrdiff_t>(range.begin),
              naive.begin() + static_cast<std::ptrdiff_t>(range.end), add);
    std::vector<Range> expected = ranges_of(naive);
    most = std::max(most, expected.size());
    REQUIRE(space.bytes() == static_cast<std::uint64_t>(std::count(naive.begin(), naive.end(), true)));

    const std::uint64_t at = random() % kBytes;
    const auto holding = std::find_if(expected.begin(), expected.end(), [at](const Range& r) { return r.end > at; });
    REQUIRE((space.from(at) == space.ranges().end()) == (holding == expected.end()));
    if (holding != expected.end()) REQUIRE(first_from(space, at) == *holding);
    REQUIRE(space.contains({at, at + 1}) == naive[at]);
    if (step % 20 != 0) continue;

    REQUIRE(ranges_of(space) == expected);
    std::reverse(expected.begin(), expected.end());
    REQUIRE(backwards(space) == expected);
    std::sort(expected.begin(), expected.end(), is_smaller);
    const std::uint64_t want = 1 + random() % 8;
    std::array<Range, 40> fits;
    const std::size_t count = space.fits(want, fits);
    std::erase_if(expected, [want](const Range& r) { return r.bytes() < want; });
    REQUIRE(count == std::min(fits.size(), expected.size()));
    REQUIRE(std::equal(fits.begin(), fits.begin() + static_cast<std::ptrdiff_t>(count), expected.begin()));
    REQUIRE(space.largest() == (expected.empty() ? space.largest() : expected.back().bytes()));
  }
  CHECK(most > 300);
}

TEST_CASE("a range that was found is forgotten with the others") {
  FreeSpace space;
  for (std::uint64_t i = 0; i < 100; ++i) space.add({i * 10, i * 10 + 5});
  space.add({500, 506});
  REQUIRE(space.best_fit(6) == Range{500, 506});
  space.subtract({500, 506});
  CHECK_FALSE(space.contains({500, 501}));
  CHECK(first_from(space, 500) == Range{510, 515});
  REQUIRE(space.best_fit(5));
  space.clear();
  CHECK_FALSE(space.contains({0, 1}));
  CHECK_FALSE(space.best_fit(1));
  CHECK(space.largest() == 0);
  space.add({0, 3});
  CHECK(space.best_fit(1) == Range{0, 3});
}

TEST_CASE("a copy of free ranges goes its own way") {
  FreeSpace space;
  for (std::uint64_t i = 0; i < 100; ++i) space.add({i * 10, i * 10 + 5});
  FreeSpace copy = space;
  copy.subtract({0, 500});
  space.add({0, 1000});
  CHECK(copy.bytes() == 250);
  CHECK(first_from(copy, 0) == Range{500, 505});
  CHECK(space.best_fit(1) == Range{0, 1000});
}
