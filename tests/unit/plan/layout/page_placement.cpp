// SPDX-License-Identifier: Apache-2.0
// Placement in pages and its free ranges, against naive counterparts.
#include "plan/layout/page_placement.h"

#include <algorithm>
#include <random>

#include "catch.h"
#include "plan/plan.h"
#include "tests/unit/seeds.h"

using namespace stalloc::plan;

namespace {

constexpr std::uint64_t kPage = 8 * kUnitBytes;

PagePlacement one_stream(std::uint64_t pages) {
  PagePlacement placement({.granularity = kPage});
  placement.grow(pages);
  return placement;
}

PagePlacement::Request make_request(std::uint64_t units, StreamIndex stream = 0) {
  return {.bytes = units * kUnitBytes, .stream = stream, .fit = Fit::BestLow, .avoid = {}};
}

}  // namespace

TEST_CASE("free ranges behave like a set of bytes") {
  std::mt19937 random(3);
  constexpr std::uint64_t kBytes = 64;
  for (int round = 0; round < 200; ++round) {
    FreeSpace space;
    std::vector<bool> naive(kBytes, false);
    for (int step = 0; step < 60; ++step) {
      const std::uint64_t a = random() % (kBytes + 1);
      const std::uint64_t b = random() % (kBytes + 1);
      const Range range{std::min(a, b), std::max(a, b)};
      const bool add = random() % 2 == 0;
      if (add) {
        space.add(range);
      } else {
        space.subtract(range);
      }
      for (std::uint64_t i = range.begin; i < range.end; ++i) naive[i] = add;

      std::vector<Range> expected;
      for (std::uint64_t i = 0; i < kBytes; ++i) {
        if (!naive[i]) continue;
        if (expected.empty() || expected.back().end != i) expected.push_back({i, i});
        ++expected.back().end;
      }
      std::vector<Range> found;
      for (const auto& [begin, end] : space.ranges()) found.push_back({begin, end});
      REQUIRE(found == expected);
      REQUIRE(space.bytes() == static_cast<std::uint64_t>(std::count(naive.begin(), naive.end(), true)));

      const std::uint64_t want = 1 + random() % 12;
      std::optional<Range> best;
      std::optional<Range> lowest;
      for (const Range& candidate : expected) {
        if (candidate.bytes() < want) continue;
        if (!best || candidate.bytes() < best->bytes()) best = candidate;
        if (!lowest) lowest = candidate;
      }
      REQUIRE(space.best_fit(want) == best);
      REQUIRE(space.lowest_fit(want) == lowest);
    }
  }
}

TEST_CASE("the best-fitting contiguous range comes first") {
  PagePlacement placement = one_stream(4);
  const auto a = placement.take(make_request(3));
  const auto b = placement.take(make_request(5));
  const auto c = placement.take(make_request(2));
  const auto d = placement.take(make_request(1));
  REQUIRE((a && b && c && d));
  placement.give(*a, 3 * kUnitBytes, 0);
  placement.give(*c, 2 * kUnitBytes, 0);
  const auto e = placement.take(make_request(2));
  REQUIRE(e);
  CHECK(e->offset == c->offset);
  CHECK(placement.stitched().empty());
}

TEST_CASE("without a contiguous range, whole pages are stitched; nothing is wasted at the ends") {
  PagePlacement placement = one_stream(5);
  std::vector<Place> pages;
  for (int i = 0; i < 5; ++i) pages.push_back(*placement.take(make_request(8)));
  placement.give(pages[1], kPage, 0);
  placement.give(pages[3], kPage, 0);
  const auto place = placement.take(make_request(12));
  REQUIRE(place);
  CHECK(place->view == 1);
  REQUIRE(placement.stitched().size() == 1);
  CHECK(placement.stitched()[0].bytes() == 2 * kPage);
  std::vector<Range> ranges;
  placement.translate(*place, 12 * kUnitBytes, ranges);
  CHECK(ranges == std::vector<Range>{{kPage, 2 * kPage}, {3 * kPage, 3 * kPage + 4 * kUnitBytes}});
  // The rest of the last page serves a small request through the home view.
  const auto small = placement.take(make_request(4));
  REQUIRE(small);
  CHECK(small->view == 0);
  CHECK(small->offset == 3 * kPage + 4 * kUnitBytes);
  CHECK_FALSE(placement.take(make_request(1)));
}

TEST_CASE("a stitched range may begin inside a page") {
  PagePlacement placement = one_stream(3);
  const auto first = placement.take(make_request(12));
  const auto second = placement.take(make_request(4));
  const auto third = placement.take(make_request(8));
  REQUIRE((first && second && third));
  const auto a = placement.take_at(make_request(1), {0, 0});
  CHECK_FALSE(a);
  placement.give(*first, 12 * kUnitBytes, 0);
  CHECK(placement.take_at(make_request(4), {0, 0}));
  placement.give(*third, 8 * kUnitBytes, 0);
  CHECK(placement.take_at(make_request(4), {0, 2 * kPage + 4 * kUnitBytes}));
  // Free: half of page 0 and of page 1 (contiguous), and half of page 2.
  const auto place = placement.take(make_request(8));
  REQUIRE(place);
  CHECK(place->view == 0);
}

TEST_CASE("what fills whole pages begins at a page where it can") {
  PagePlacement placement = one_stream(5);
  REQUIRE(placement.take(make_request(1)));
  CHECK(placement.take(make_request(8))->offset == kPage);
  CHECK(placement.take_at(make_request(1), {0, 5 * kPage - kUnitBytes}));
  PagePlacement::Request high = make_request(8);
  high.fit = Fit::Highest;
  CHECK(placement.take(high)->offset == 3 * kPage);
  PagePlacement::Request low = make_request(8);
  low.fit = Fit::Lowest;
  CHECK(placement.take(low)->offset == 2 * kPage);
  // Stitched, too: pages 1 and 3 rather than parts of 0, 1 and 3.
  placement.give({0, kPage}, kPage, 0);
  placement.give({0, 3 * kPage}, kPage, 0);
  REQUIRE(placement.take(make_request(16)));
  REQUIRE(placement.stitched().size() == 1);
  CHECK(placement.stitched()[0].bytes() == 2 * kPage);
}

TEST_CASE("what fills whole pages takes parts of pages where no whole one is free") {
  PagePlacement placement = one_stream(2);
  REQUIRE(placement.take_at(make_request(4), {0, 0}));
  REQUIRE(placement.take_at(make_request(4), {0, kPage + 4 * kUnitBytes}));
  const auto place = placement.take(make_request(8));
  REQUIRE(place);
  CHECK(place->offset == 4 * kUnitBytes);
}

TEST_CASE("pages kept for synchronous memory serve nothing else") {
  PagePlacement placement({.granularity = kPage, .streams = 1, .synchronous = true});
  placement.grow(3);
  placement.keep_for_synchronous(2 * kPage);
  CHECK(placement.free_bytes(0) == kPage);
  REQUIRE(placement.take(make_request(4)));
  REQUIRE(placement.take(make_request(4)));
  CHECK_FALSE(placement.take(make_request(1)));
  const auto place = placement.take(make_request(12, kSynchronous));
  REQUIRE(place);
  CHECK(place->offset == 0);
}

TEST_CASE("a stitched view serves again when its pages are free") {
  PagePlacement placement = one_stream(5);
  std::vector<Place> pages;
  for (int i = 0; i < 5; ++i) pages.push_back(*placement.take(make_request(8)));
  placement.give(pages[1], kPage, 0);
  placement.give(pages[3], kPage, 0);
  for (int round = 0; round < 3; ++round) {
    const auto place = placement.take(make_request(10 + static_cast<std::uint64_t>(round)));
    REQUIRE(place);
    CHECK(place->view == 1);
    placement.give(*place, (10 + static_cast<std::uint64_t>(round)) * kUnitBytes, 0);
  }
  CHECK(placement.stitched().size() == 1);
}

TEST_CASE("a request beyond the free bytes gets nothing until the placement grows") {
  PagePlacement placement = one_stream(2);
  CHECK_FALSE(placement.take(make_request(17)));
  placement.grow(1);
  CHECK(placement.take(make_request(17)));
  CHECK(placement.physical_bytes() == 3 * kPage);
}

TEST_CASE("bytes to be avoided stay untouched, and come back") {
  PagePlacement placement = one_stream(2);
  const std::vector<Range> avoid = {{0, 4 * kUnitBytes}, {kPage, kPage + kUnitBytes}};
  PagePlacement::Request careful = make_request(4);
  careful.avoid = avoid;
  const auto place = placement.take(careful);
  REQUIRE(place);
  CHECK(place->offset == 4 * kUnitBytes);
  CHECK(placement.take_at(make_request(4), {0, 0}));
  CHECK(placement.take(careful));
  CHECK_FALSE(placement.take(careful));
}

TEST_CASE("bytes of one's own stream are preferred; others only where allowed") {
  for (const bool cross : {true, false}) {
    PagePlacement placement({.granularity = kPage, .streams = 2, .synchronous = false, .cross_stream = cross});
    placement.grow(2);
    const auto a = placement.take(make_request(8, 0));
    const auto b = placement.take(make_request(8, 1));
    REQUIRE((a && b));
    placement.give(*a, kPage, 0);
    placement.give(*b, kPage, 1);
    CHECK(placement.take(make_request(4, 1))->offset == b->offset);
    CHECK(placement.take(make_request(4, 0))->offset == a->offset);
    CHECK(placement.take(make_request(4, 1))->offset == b->offset + 4 * kUnitBytes);
    CHECK(placement.take(make_request(4, 1)).has_value() == cross);
  }
}

TEST_CASE("what placing takes is counted for the spaces of all streams") {
  const auto examined = [](StreamIndex streams) {
    PagePlacement placement({.granularity = kPage, .streams = streams});
    placement.grow(2);
    for (int i = 0; i < 100; ++i) {
      const auto place = placement.take(make_request(1));
      REQUIRE(place);
      placement.give(*place, kUnitBytes, 0);
    }
    return placement.examined();
  };
  CHECK(examined(10) <= 2 * examined(1));
  CHECK(examined(16'000) >= 100 * examined(1));
}

TEST_CASE("synchronous memory shares with nobody else") {
  PagePlacement placement({.granularity = kPage, .streams = 1, .synchronous = true, .cross_stream = true});
  placement.grow(2);
  const auto a = placement.take(make_request(8, kSynchronous));
  const auto b = placement.take(make_request(8, 0));
  REQUIRE((a && b));
  placement.give(*a, kPage, kSynchronous);
  placement.give(*b, kPage, 0);
  CHECK(placement.take(make_request(8, 0))->offset == b->offset);
  CHECK_FALSE(placement.take(make_request(1, 0)));
  CHECK(placement.take(make_request(8, kSynchronous))->offset == a->offset);
}

TEST_CASE("a page belongs to synchronous memory or to streams, whichever uses it first") {
  PagePlacement placement({.granularity = kPage, .streams = 2, .synchronous = true, .cross_stream = true});
  placement.grow(2);
  PagePlacement::Request first = make_request(1, kSynchronous);
  const std::vector<Range> avoid = {{4 * kUnitBytes, kPage}};
  first.avoid = avoid;
  CHECK(placement.take(first)->offset == 0);
  const auto of_stream = placement.take(make_request(1, 0));
  REQUIRE(of_stream);
  CHECK(of_stream->offset == kPage);
  placement.give(*of_stream, kUnitBytes, 0);
  CHECK_FALSE(placement.take(make_request(9, 0)));
  CHECK_FALSE(placement.take(make_request(8, kSynchronous)));
  CHECK(placement.take(make_request(7, kSynchronous)));
  CHECK(placement.take(make_request(8, 1)));
}

TEST_CASE("random requests never share a byte, and pages are not wasted") {
  for (const std::uint64_t seed : stalloc::seeds(60)) {
    std::mt19937 random(seed);
    const StreamIndex streams = 1 + seed % 3;
    PagePlacement placement(
        {.granularity = kPage, .streams = streams, .synchronous = seed % 2 == 0, .cross_stream = seed % 5 != 0});
    placement.grow(16);
    std::vector<int> owner(16 * 8, -1);  // of each unit
    struct Live {
      Place place;
      std::uint64_t bytes;
      StreamIndex stream;
      int id;
    };
    std::vector<Live> live;
    for (int id = 0; id < 400; ++id) {
      if (random() % 2 == 0 && !live.empty()) {
        const std::size_t which = random() % live.size();
        const Live freed = live[which];
        std::replace(owner.begin(), owner.end(), freed.id, -1);
        placement.give(freed.place, freed.bytes, freed.stream);
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
        continue;
      }
      const StreamIndex kinds = streams + (seed % 2 == 0 ? 1 : 0);
      StreamIndex stream = static_cast<StreamIndex>(random() % kinds);
      if (stream == streams) stream = kSynchronous;
      PagePlacement::Request request = make_request(1 + random() % 30, stream);
      request.fit = static_cast<Fit>(random() % 4);
      const auto place = placement.take(request);
      if (!place) continue;
      std::vector<Range> ranges;
      placement.translate(*place, request.bytes, ranges);
      std::uint64_t bytes = 0;
      for (const Range& range : ranges) {
        bytes += range.bytes();
        for (std::uint64_t unit = range.begin / kUnitBytes; unit < range.end / kUnitBytes; ++unit) {
          REQUIRE(owner.at(unit) == -1);
          owner[unit] = id;
        }
      }
      REQUIRE(bytes == request.bytes);
      live.push_back({*place, request.bytes, stream, id});
    }
    for (const StitchedView& view : placement.stitched()) {
      std::vector<bool> seen(16, false);
      for (const Range& piece : view.pieces()) {
        REQUIRE(piece.begin % kPage == 0);
        REQUIRE(piece.end % kPage == 0);
        for (std::uint64_t page = piece.begin / kPage; page < piece.end / kPage; ++page) {
          REQUIRE_FALSE(seen.at(page));
          seen[page] = true;
        }
      }
    }
  }
}
