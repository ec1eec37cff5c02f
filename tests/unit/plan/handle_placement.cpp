// Placement in handles: how it grows, and random programs in which no two live requests may share a byte.
#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "catch.h"
#include "plan/plan.h"
#include "plan/simulate/null_backend.h"

using namespace stalloc;
using namespace stalloc::plan;

namespace {

constexpr std::uint64_t kPage = 8 * kUnitBytes;

struct Live {
  Place place;
  std::uint64_t bytes;
  StreamIndex stream;
};

// Adds the ranges of a request to `taken`, by where they begin; false where one is taken already.
bool take(const SimulatedAllocator& allocator, const Live& live, std::map<std::uint64_t, std::uint64_t>* taken) {
  std::vector<Range> ranges;
  allocator.placement().translate(live.place, live.bytes, ranges);
  std::uint64_t bytes = 0;
  for (const Range& range : ranges) {
    const auto after = taken->lower_bound(range.begin);
    if (after != taken->end() && after->first < range.end) return false;
    if (after != taken->begin() && std::prev(after)->second > range.begin) return false;
    taken->emplace(range.begin, range.end);
    bytes += range.bytes();
  }
  return bytes == live.bytes;
}

}  // namespace

TEST_CASE("new handles hold what is missing, rounded to a page, and no more") {
  const auto missing = GENERATE(as<std::uint64_t>{}, 1, 512, kPage, 3 * kPage + 512, 100 * kPage, 5000 * kPage);
  const auto held = GENERATE(as<std::uint64_t>{}, 0, 100 * kPage, 100000 * kPage);
  const auto stranded = GENERATE(as<std::uint64_t>{}, 0, 1000 * kPage);
  const bool first = GENERATE(false, true);
  CAPTURE(missing, held, stranded, first);
  std::uint64_t sum = 0;
  for (const std::uint64_t bytes : new_handle_sizes({}, {missing, missing, held, stranded, 0, first}, kPage)) {
    REQUIRE(bytes % kPage == 0);
    REQUIRE(bytes > 0);
    sum += bytes;
  }
  REQUIRE(sum == round_up(missing, kPage));
}

TEST_CASE("handles grow with what is held, for requests much larger than they are") {
  const auto largest_of = [](std::uint64_t request, std::uint64_t held) {
    return new_handle_sizes({}, {request, request, held}, kPage).front();
  };
  REQUIRE(largest_of(2 * kPage, 0) == 2 * kPage);
  REQUIRE(largest_of(100 * kPage, 5000 * kPage) == 2 * kPage);
  REQUIRE(largest_of(100 * kPage, 10000 * kPage) == 4 * kPage);
  REQUIRE(largest_of(1000 * kPage, 0) == 2 * kPage);
  REQUIRE(largest_of(1000 * kPage, 100000 * kPage) == 49 * kPage);
}

TEST_CASE("a request for a large part of the device has some hundred handles, whatever the largest may be otherwise") {
  constexpr std::uint64_t kDevice = 64000 * kPage;
  for (const std::uint64_t request : {kDevice / 16, kDevice / 2, kDevice}) {
    const auto handles = new_handle_sizes({}, {request, request, 0, 0, kDevice}, kPage);
    REQUIRE(handles.size() >= 64);
    REQUIRE(handles.size() <= 300);
  }
  REQUIRE(new_handle_sizes({}, {4000 * kPage, 4000 * kPage, 0, 0, 64064 * kPage}, kPage).size() > 300);
}

TEST_CASE("where much of what is held is stranded, handles are half as large, but no smaller than a page") {
  const auto largest_of = [](std::uint64_t held, std::uint64_t stranded) {
    return new_handle_sizes({}, {100 * kPage, 100 * kPage, held, stranded}, kPage).front();
  };
  REQUIRE(largest_of(10000 * kPage, 40 * kPage) == 4 * kPage);
  REQUIRE(largest_of(10000 * kPage, 41 * kPage) == 2 * kPage);
  REQUIRE(largest_of(0, 100 * kPage) == kPage);
}

TEST_CASE("until something large is freed, handles are larger, up to eight pages") {
  SimulatedAllocator::Options options = simulation_options(kPage, 4000 * kPage);
  options.placement.policy.small_bytes = kPage / 2;
  SimulatedAllocator allocator(options);
  const auto handles_for = [&](std::uint64_t pages) {
    const std::uint64_t before = allocator.counts().handles;
    REQUIRE(allocator.allocate(pages * kPage, 1));
    return allocator.counts().handles - before;
  };
  REQUIRE(handles_for(8) == 4);     // two pages each,
  REQUIRE(handles_for(120) == 30);  // a 32nd of 128,
  REQUIRE(handles_for(240) == 30);  // eight, as of 368
  const auto small = allocator.allocate(kPage, 1);
  allocator.defer_free(*small, kPage, 1);
  const auto large = allocator.allocate(17 * kPage, 1);  // of which a page is free
  REQUIRE(allocator.counts().handles == 67);
  allocator.defer_free(*large, 17 * kPage, 1);
  REQUIRE(handles_for(217) == 100);  // two pages each, behind the free ones
}

TEST_CASE("stitching is spared while memory grows fast and little of it is free") {
  GrowthPace pace{OnlinePolicy{}};
  REQUIRE(pace.spares_stitching(1, 1000, 20));
  REQUIRE_FALSE(pace.spares_stitching(2, 1000, 40));
  for (const std::uint64_t request : {2000, 4000}) pace.spares_stitching(request, 1000, 0);
  REQUIRE_FALSE(pace.spares_stitching(4001, 1100, 20));  // slowly
  REQUIRE_FALSE(pace.spares_stitching(4001, 1900, 40));  // not twice as much
  REQUIRE_FALSE(pace.spares_stitching(4002, 1100, 0));
  REQUIRE(pace.spares_stitching(4003, 2002, 40));  // fast again
}

TEST_CASE("live requests share no byte, and every view shows whole handles, each once") {
  const auto seed = GENERATE(range(1U, 31U));
  CAPTURE(seed);
  std::mt19937 random(seed);
  const StreamIndex streams = 1 + seed % 3;
  SimulatedAllocator::Options options = simulation_options(kPage, 4000 * kPage);
  options.placement.policy.small_bytes = kPage / 2;
  options.placement.policy.smallest_stitched = kPage;
  options.placement.policy.first_pages = 4;
  SimulatedAllocator allocator(options);
  std::vector<Live> live;
  std::uint64_t live_bytes = 0;
  std::uint64_t peak = 0;
  for (int step = 0; step < 1500; ++step) {
    if (!live.empty() && (live.size() > 50 || random() % 2 == 0)) {
      std::swap(live[random() % live.size()], live.back());
      allocator.defer_free(live.back().place, live.back().bytes, live.back().stream);
      live_bytes -= live.back().bytes;
      live.pop_back();
      continue;
    }
    const std::uint64_t bytes = (1 + random() % (random() % 3 == 0 ? 4 : 200)) * kUnitBytes;
    const auto stream = static_cast<StreamIndex>(random() % streams + 1);
    const auto place = allocator.allocate(bytes, stream);
    REQUIRE(place);
    live.push_back({*place, bytes, stream});
    peak = std::max(peak, live_bytes += bytes);
    std::map<std::uint64_t, std::uint64_t> taken;
    for (const Live& one : live) REQUIRE(take(allocator, one, &taken));
  }
  constexpr std::uint64_t kUnlikeAny = 333 * kUnitBytes;  // so that a deferred free is completed
  REQUIRE(allocator.allocate(kUnlikeAny, 1));
  live_bytes += kUnlikeAny;
  const HandlePlacement& placement = allocator.placement();
  REQUIRE(placement.physical_bytes() - placement.free_bytes() == live_bytes);
  REQUIRE(placement.physical_bytes() >= peak);
  REQUIRE(allocator.counts().views > 0);
  REQUIRE(allocator.counts().lengthened > 0);
  for (std::uint32_t number = 1; number <= placement.views().numbers(); ++number) {
    REQUIRE(placement.views()[number].bytes() <= placement.views()[number].room);
    std::map<std::uint64_t, std::uint64_t> shown;
    for (const Range& piece : placement.views()[number].stitched.pieces()) {
      for (std::uint64_t at = piece.begin; at < piece.end;) {
        const auto handle = placement.handles().find(at);
        REQUIRE(handle != placement.handles().end());
        at += handle->second.bytes;
        REQUIRE(shown.emplace(handle->first, at).second);
        REQUIRE(at <= piece.end);
      }
    }
  }
}

TEST_CASE("a line that is full serves nothing") {
  SimulatedAllocator::Options options = simulation_options(kPage, 0);
  SimulatedAllocator allocator(options);
  REQUIRE(allocator.allocate(options.placement.large.bytes() + kUnitBytes, 1) == std::nullopt);
  REQUIRE(allocator.placement().physical_bytes() == 0);
}
