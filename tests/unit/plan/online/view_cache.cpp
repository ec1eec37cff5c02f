// SPDX-License-Identifier: Apache-2.0
// The cache of stitched views, compared with a plain list of the same views.
#include "plan/online/view_cache.h"

#include <algorithm>
#include <random>
#include <vector>

#include "catch.h"
#include "plan/placement/units.h"

using namespace stalloc::plan;

namespace {

// What a cache should say of a view.
struct Expected {
  std::uint32_t number = 0;
  std::vector<Range> pieces;
  std::vector<std::uint64_t> live;  // bytes of each request
  [[nodiscard]] std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (const Range& piece : pieces) sum += piece.bytes();
    return sum;
  }
};

// `recent`: the views in which nothing lives, the least recently used first.
void compare(const ViewCache& cache, const std::vector<Expected>& views, const std::vector<std::uint32_t>& recent) {
  REQUIRE(cache.count() == views.size());
  std::vector<std::uint32_t> seen;
  for (std::uint32_t number = cache.most_recent(); number != 0; number = cache.older(number)) seen.push_back(number);
  REQUIRE(std::equal(seen.begin(), seen.end(), recent.rbegin(), recent.rend()));
  REQUIRE(cache.least_recent() == (recent.empty() ? 0 : recent.front()));
  std::uint64_t before = 0;
  for (const ViewCache::Entry& entry : cache.from(0)) {
    REQUIRE(entry.bytes >= before);
    before = entry.bytes;
  }
  for (const Expected& view : views) {
    REQUIRE(cache[view.number].bytes() == view.bytes());
    const auto from = cache.from(view.bytes());
    const auto named = std::ranges::count(from, view.number, &ViewCache::Entry::number);
    REQUIRE(named == 1);
    REQUIRE(from.front().bytes == view.bytes());
    REQUIRE(std::ranges::count(cache.from(view.bytes() + 1), view.number, &ViewCache::Entry::number) == 0);
  }
}

}  // namespace

TEST_CASE("views are found by their bytes, and those without life in the order of their use", "[online]") {
  const auto seed = GENERATE(range(1U, 6U));
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto below = [&](std::size_t bound) { return random() % bound; };
  ViewCache cache;
  std::vector<Expected> views;
  std::vector<std::uint32_t> recent;
  const auto forget = [&](std::uint32_t number) { std::erase(recent, number); };
  const auto some_pieces = [&] {
    std::vector<Range> pieces;
    for (std::size_t i = 0; i < 1 + below(4); ++i) {
      const std::uint64_t begin = below(1000) * kUnitBytes;
      pieces.push_back({begin, begin + (1 + below(9)) * kUnitBytes});
    }
    return pieces;
  };
  for (int step = 0; step < 2000; ++step) {
    const std::size_t action = views.empty() ? 0 : below(6);
    Expected* view = views.empty() ? nullptr : &views[below(views.size())];
    if (action == 0 && views.size() < 60) {
      std::vector<Range> pieces = some_pieces();
      const std::uint32_t number = cache.add(pieces, 0);
      views.push_back({number, std::move(pieces), {}});
      recent.push_back(number);
    } else if (action == 1 && view->pieces.size() > 1) {
      const std::uint64_t bytes = view->bytes();
      view->pieces.pop_back();
      cache.cut(view->number, {view->bytes(), bytes});
    } else if (action == 2 || action == 3) {
      view->live.push_back((1 + below(9)) * kUnitBytes);
      cache.enter(view->number, view->live.back());
      forget(view->number);
    } else if (action == 4 && !view->live.empty()) {
      cache.leave(view->number, view->live.back());
      view->live.pop_back();
      if (view->live.empty()) recent.push_back(view->number);
    } else if (action == 5 && below(4) == 0) {  // with or without life
      forget(view->number);
      cache.remove(view->number);
      views.erase(views.begin() + (view - views.data()));
    } else if (action == 5 && view->live.empty()) {
      cache.refresh(view->number);
      forget(view->number);
      recent.push_back(view->number);
    }
    compare(cache, views, recent);
  }
}

TEST_CASE("a planned view is in no list until it is released", "[plan][online]") {
  ViewCache cache;
  const std::uint32_t planned = cache.add({{0, 4 * kUnitBytes}}, 0, true);
  const std::uint32_t other = cache.add({{0, kUnitBytes}}, 0);
  REQUIRE(cache.count() == 1);
  REQUIRE(cache.from(0).size() == 1);
  REQUIRE(cache.least_recent() == other);
  cache.enter(planned, kUnitBytes);
  cache.leave(planned, kUnitBytes);
  REQUIRE(cache.most_recent() == other);
  const bool in_use = GENERATE(false, true);
  if (in_use) cache.enter(planned, kUnitBytes);
  cache.release_from_plan(planned);
  REQUIRE(cache.count() == 2);
  REQUIRE(cache.from(2 * kUnitBytes).front().number == planned);
  REQUIRE(cache.most_recent() == (in_use ? other : planned));
  if (in_use) cache.leave(planned, kUnitBytes);
  REQUIRE(cache.most_recent() == planned);
  cache.remove(planned);
  REQUIRE(cache.count() == 1);
  REQUIRE(cache.most_recent() == other);
}
