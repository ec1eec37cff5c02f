// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/planned/occupancy.h"

#include <random>
#include <vector>

#include "catch.h"
#include "plan/plan.h"
#include "tests/unit/seeds.h"

using stalloc::plan::kUnitBytes;
using stalloc::serve::Occupancy;
using stalloc::serve::PhysicalRange;

namespace {

constexpr std::uint64_t kPage = 64 << 10;

using Ranges = std::vector<PhysicalRange>;

}  // namespace

TEST_CASE("no byte of a taken range can be taken again", "[serve][occupancy]") {
  Occupancy occupancy(16 * kPage, kPage);
  const auto begin = GENERATE(as<std::uint64_t>{}, 0, kUnitBytes, kPage - kUnitBytes, kPage, kPage + 3 * kUnitBytes);
  const auto size = GENERATE(as<std::uint64_t>{}, kUnitBytes, 64 * kUnitBytes, kPage, kPage + kUnitBytes, 3 * kPage);
  CAPTURE(begin, size);
  const Ranges taken{{begin, begin + size}};
  REQUIRE(occupancy.try_take(taken));

  REQUIRE_FALSE(occupancy.try_take(taken));
  REQUIRE_FALSE(occupancy.try_take(Ranges{{begin + size - kUnitBytes, begin + size + kUnitBytes}}));
  REQUIRE_FALSE(occupancy.try_take(Ranges{{0, 16 * kPage}}));
  REQUIRE(occupancy.try_take(Ranges{{begin + size, begin + size + kUnitBytes}}));
  occupancy.release(Ranges{{begin + size, begin + size + kUnitBytes}});
  if (begin > 0) REQUIRE(occupancy.try_take(Ranges{{0, begin}}));
  if (begin > 0) occupancy.release(Ranges{{0, begin}});

  occupancy.release(taken);
  REQUIRE(occupancy.try_take(Ranges{{0, 16 * kPage}}));
}

TEST_CASE("several ranges are taken together or not at all", "[serve][occupancy]") {
  Occupancy occupancy(8 * kPage, kPage);
  REQUIRE(occupancy.try_take(Ranges{{5 * kPage, 5 * kPage + kUnitBytes}}));
  REQUIRE_FALSE(occupancy.try_take(Ranges{{0, kPage}, {2 * kPage, 3 * kPage}, {5 * kPage, 6 * kPage}}));
  REQUIRE(occupancy.is_free({0, 5 * kPage}));
  REQUIRE_FALSE(occupancy.try_take(Ranges{{0, kPage}, {kPage - kUnitBytes, 2 * kPage}}));
  REQUIRE(occupancy.is_free({0, 5 * kPage}));
}

TEST_CASE("a page filled by small ranges is full, and empty when they are released", "[serve][occupancy]") {
  Occupancy occupancy(2 * kPage, kPage);
  for (std::uint64_t at = 0; at < kPage; at += kUnitBytes) {
    REQUIRE(occupancy.try_take(Ranges{{at, at + kUnitBytes}}));
  }
  REQUIRE_FALSE(occupancy.try_take(Ranges{{7 * kUnitBytes, 8 * kUnitBytes}}));
  REQUIRE_FALSE(occupancy.try_take(Ranges{{0, kPage}}));
  for (std::uint64_t at = 0; at < kPage; at += kUnitBytes) occupancy.release(Ranges{{at, at + kUnitBytes}});
  REQUIRE(occupancy.try_take(Ranges{{0, 2 * kPage}}));
}

TEST_CASE("occupancy agrees with a flag for every unit", "[serve][occupancy]") {
  constexpr std::uint64_t kUnits = 6 * kPage / kUnitBytes;
  const std::uint64_t seed = GENERATE(from_range(stalloc::seeds(5)));
  std::mt19937_64 random(static_cast<std::uint64_t>(seed));
  Occupancy occupancy(6 * kPage, kPage);
  std::vector<bool> model(kUnits);
  std::vector<Ranges> live;
  for (int step = 0; step < 5000; ++step) {
    if (!live.empty() && random() % 2 == 0) {
      const std::size_t chosen = random() % live.size();
      occupancy.release(live[chosen]);
      for (const PhysicalRange& range : live[chosen]) {
        for (std::uint64_t at = range.begin; at < range.end; at += kUnitBytes) model[at / kUnitBytes] = false;
      }
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(chosen));
      continue;
    }
    Ranges wanted;
    bool free = true;
    for (std::uint64_t count = random() % 3 + 1; count > 0; --count) {
      const std::uint64_t longest = random() % 3 == 0 ? kUnits : 40;
      const std::uint64_t begin = random() % kUnits;
      const std::uint64_t end = std::min(kUnits, begin + 1 + random() % longest);
      for (const PhysicalRange& other : wanted) {
        free = free && (other.end <= begin * kUnitBytes || end * kUnitBytes <= other.begin);
      }
      for (std::uint64_t unit = begin; unit < end; ++unit) free = free && !model[unit];
      wanted.push_back({begin * kUnitBytes, end * kUnitBytes});
    }
    REQUIRE(occupancy.try_take(wanted) == free);
    if (!free) continue;
    for (const PhysicalRange& range : wanted) {
      for (std::uint64_t at = range.begin; at < range.end; at += kUnitBytes) model[at / kUnitBytes] = true;
    }
    live.push_back(wanted);
  }
}
