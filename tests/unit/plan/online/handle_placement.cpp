// SPDX-License-Identifier: Apache-2.0
// Placement in handles: how it grows, and random programs in which no two live requests may share a byte.
#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <vector>

#include "catch.h"
#include "plan/online/growth.h"
#include "plan/online/mapping_budget.h"
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
  CAPTURE(missing, held);
  std::uint64_t sum = 0;
  for (const std::uint64_t bytes :
       new_handle_sizes({}, {.missing = missing, .request = missing, .held = held}, kPage)) {
    REQUIRE(bytes % kPage == 0);
    REQUIRE(bytes > 0);
    sum += bytes;
  }
  REQUIRE(sum == round_up(missing, kPage));
}

// The sizes below follow from these.
const OnlinePolicy kSizes = [] {
  OnlinePolicy policy;
  policy.held_per_handle = 4096;
  policy.room_per_handle = 2048;
  policy.handles_per_request = 128;
  policy.held_per_coarse_handle = 1024;
  return policy;
}();

TEST_CASE("handles grow with what is held, and with the request") {
  const auto largest_of = [](std::uint64_t request, std::uint64_t held) {
    return new_handle_sizes(kSizes, {.missing = request, .request = request, .held = held}, kPage).front();
  };
  REQUIRE(largest_of(2 * kPage, 0) == kPage);
  REQUIRE(largest_of(100 * kPage, 8000 * kPage) == kPage);
  REQUIRE(largest_of(100 * kPage, 28600 * kPage) == 4 * kPage);  // a power of two
  REQUIRE(largest_of(100 * kPage, 33000 * kPage) == 8 * kPage);
  REQUIRE(largest_of(255 * kPage, 0) == kPage);
  REQUIRE(largest_of(1000 * kPage, 0) == 4 * kPage);
  REQUIRE(largest_of(100 * kPage, 400000 * kPage) == 64 * kPage);
  REQUIRE(largest_of(51200 * kPage, 0) == 256 * kPage);
}

TEST_CASE("where mapping has cost more than it may, handles are larger, up to a part of the most that was held") {
  const auto sizes_of = [](std::uint64_t coarseness, std::uint64_t most_held, std::uint64_t bound = 1) {
    OnlinePolicy policy;
    policy.handles_per_request = 4;
    policy.held_per_coarse_handle = 128;
    const Growth growth{.missing = 16 * kPage,
                        .request = 16 * kPage,
                        .held = 0,
                        .most_held = most_held,
                        .coarseness = coarseness,
                        .bound = bound};
    return new_handle_sizes(policy, growth, kPage);
  };
  using Sizes = std::vector<std::uint64_t>;
  REQUIRE(sizes_of(1, 12800 * kPage) == Sizes(4, 4 * kPage));
  REQUIRE(sizes_of(2, 12800 * kPage) == Sizes(2, 8 * kPage));
  REQUIRE(sizes_of(16, 12800 * kPage) == Sizes{16 * kPage});  // no more than is missing
  REQUIRE(sizes_of(16, 1280 * kPage) == Sizes(2, 8 * kPage));
  // A debt raises the bound.
  REQUIRE(sizes_of(16, 768 * kPage) == Sizes(4, 4 * kPage));
  REQUIRE(sizes_of(16, 768 * kPage, 2) == Sizes(2, 8 * kPage));
  REQUIRE(sizes_of(1, 1280 * kPage, 16) == Sizes(4, 4 * kPage));
  REQUIRE(sizes_of(16, 256 * kPage) == Sizes(4, 4 * kPage));
}

TEST_CASE("where mapping has cost more than it may, a large request has handles of its own size") {
  const auto largest_of = [](std::uint64_t request, std::uint64_t missing, std::uint64_t coarseness) {
    const Growth growth{.missing = missing, .request = request, .most_held = 4096 * kPage, .coarseness = coarseness};
    return new_handle_sizes(kSizes, growth, kPage).front();
  };
  OnlinePolicy policy = kSizes;
  REQUIRE(policy.handles_per_coarse_request == 32);
  REQUIRE(largest_of(128 * kPage, 128 * kPage, 1) == kPage);
  REQUIRE(largest_of(128 * kPage, 128 * kPage, 16) == 4 * kPage);  // 1/1024 of the most that was held
  REQUIRE(largest_of(512 * kPage, 512 * kPage, 16) == 16 * kPage);
  REQUIRE(largest_of(512 * kPage, 10 * kPage, 16) == 8 * kPage);  // no more than is missing
  REQUIRE(largest_of(512 * kPage, 512 * kPage, 2) == 8 * kPage);  // twice as large as usual
}

TEST_CASE("where little room is left, handles are small, unless stitching has cost more than mapping may") {
  const auto largest_of = [](std::uint64_t room, std::uint64_t coarseness, bool stitching_overdrawn = false) {
    const Growth growth{.missing = 1000 * kPage,
                        .request = 1000 * kPage,
                        .held = 398'000 * kPage,
                        .most_held = 800'000 * kPage,
                        .room = room,
                        .coarseness = coarseness,
                        .stitching_overdrawn = stitching_overdrawn};
    return new_handle_sizes(kSizes, growth, kPage).front();
  };
  const std::uint64_t plenty = 1'000'000 * kPage;
  REQUIRE(largest_of(plenty, 1) == 64 * kPage);
  REQUIRE(largest_of(plenty, 4) == 256 * kPage);
  REQUIRE(largest_of(20'480 * kPage, 1) == 8 * kPage);
  REQUIRE(largest_of(20'480 * kPage, 16) == 8 * kPage);
  REQUIRE(largest_of(1000 * kPage, 16) == 4 * kPage);  // as large as the request wants them
  REQUIRE(largest_of(0, 1) == 4 * kPage);
  REQUIRE(largest_of(20'480 * kPage, 4, true) == 256 * kPage);
}

TEST_CASE("a large request has one to three hundred handles") {
  for (const std::uint64_t pages : {1000, 4000, 32000, 64000}) {
    const auto handles = new_handle_sizes({}, {.missing = pages * kPage, .request = pages * kPage}, kPage);
    REQUIRE(handles.size() >= 100);
    REQUIRE(handles.size() <= 300);
  }
}

TEST_CASE("mapping may take a share of the time, and an allowance; what is owed makes handles larger") {
  constexpr std::uint64_t kMillisecond = 1'000'000;
  OnlinePolicy policy;
  policy.elapsed_per_mapping = 10;
  policy.mapping_allowance = 80;
  MappingBudget budget(policy);
  MappingTime time;
  const auto after = [&](std::uint64_t elapsed, std::uint64_t mapping) {
    time.elapsed += elapsed * kMillisecond;
    time.mapping += mapping * kMillisecond;
    const Overdraft overdraft = budget.overdraft(time, 0);
    REQUIRE(overdraft.held_per_slack == 0);
    return overdraft.coarseness;
  };
  REQUIRE(after(0, 80) == 1);    // the allowance
  REQUIRE(after(0, 1) == 2);     // 1 is owed
  REQUIRE(after(0, 9) == 4);     // 10, each eighth of the allowance doubles
  REQUIRE(after(100, 10) == 4);  // paid by the time
  REQUIRE(after(100, 0) == 1);
  REQUIRE(after(100000, 0) == 1);
  REQUIRE(after(0, 80) == 1);  // no more was saved than the allowance
  REQUIRE(after(0, 100000) == 16);
  REQUIRE(after(790, 0) == 2);  // no more is owed either
  REQUIRE(after(20, 0) == 1);

  policy.elapsed_per_mapping = 1;  // off
  MappingBudget unlimited(policy);
  REQUIRE(unlimited.overdraft({100 * kMillisecond, 100 * kMillisecond}, 100 * kMillisecond).coarseness == 1);
}

TEST_CASE("each quarter of the allowance that is owed doubles the bound on larger handles") {
  constexpr std::uint64_t kMillisecond = 1'000'000;
  OnlinePolicy policy;
  policy.mapping_allowance = 80;
  MappingBudget budget(policy);
  const auto bound_after = [&budget](std::uint64_t mapping) {
    return budget.overdraft({0, mapping * kMillisecond}, 0).bound;
  };
  REQUIRE(bound_after(80) == 1);
  REQUIRE(bound_after(99) == 1);  // 19 are owed
  REQUIRE(bound_after(100) == 2);
  REQUIRE(bound_after(139) == 4);
  REQUIRE(bound_after(1000) == 16);  // no more is owed than the allowance
}

TEST_CASE("memory is given back unasked as long as mapping takes little time then") {
  constexpr std::uint64_t kMillisecond = 1'000'000;
  OnlinePolicy policy;
  policy.elapsed_per_mapping = 10;
  policy.mapping_allowance = 160;
  MappingBudget budget(policy);
  MappingTime time{.elapsed = 0, .mapping = 500 * kMillisecond};  // what was mapped before does not count
  const auto after = [&](std::uint64_t elapsed, std::uint64_t mapping) {
    time.elapsed += elapsed * kMillisecond;
    time.mapping += mapping * kMillisecond;
    return budget.may_give_back(time);
  };
  REQUIRE(after(0, 0));
  REQUIRE(after(0, 10));  // a sixteenth of the allowance
  REQUIRE_FALSE(after(0, 1));
  REQUIRE_FALSE(after(5, 0));
  REQUIRE(after(5, 0));  // paid by the time
  REQUIRE_FALSE(after(0, 100000));
  REQUIRE_FALSE(after(99, 0));  // no more is owed than the allowance
  REQUIRE(after(1, 0));
  budget.pay_for_giving_back(2 * kMillisecond);  // the time for looking counts, too
  REQUIRE_FALSE(after(19, 0));
  REQUIRE(after(1, 0));

  policy.elapsed_per_mapping = 1;  // off
  MappingBudget unlimited(policy);
  REQUIRE(unlimited.may_give_back({}));
  REQUIRE(unlimited.may_give_back({0, 1000 * kMillisecond}));
}

TEST_CASE("what stitching spends makes new handles larger before anything is owed") {
  constexpr std::uint64_t kMillisecond = 1'000'000;
  OnlinePolicy policy;
  policy.mapping_allowance = 80;
  MappingBudget budget(policy);
  const auto coarseness_after = [&](std::uint64_t stitching) {
    const Overdraft overdraft = budget.overdraft({0, stitching * kMillisecond}, stitching * kMillisecond);
    REQUIRE(overdraft.held_per_slack == 0);
    return overdraft.coarseness;
  };
  REQUIRE(coarseness_after(9) == 1);
  REQUIRE(coarseness_after(10) == 2);  // each eighth of the allowance doubles
  REQUIRE(coarseness_after(29) == 4);
  REQUIRE(coarseness_after(40) == 16);
  REQUIRE(coarseness_after(80) == 16);
}

TEST_CASE("what is owed for stitching lets more be free before a request stitches") {
  constexpr std::uint64_t kMillisecond = 1'000'000;
  OnlinePolicy policy;
  policy.elapsed_per_mapping = 10;
  policy.elapsed_per_stitching = 1;  // off
  policy.mapping_allowance = 80;
  policy.held_per_slack = 3;
  MappingBudget budget(policy);
  MappingTime time;
  std::uint64_t stitched = 0;
  const auto after = [&](std::uint64_t elapsed, std::uint64_t stitching) {
    time.elapsed += elapsed * kMillisecond;
    time.mapping += stitching * kMillisecond;
    stitched += stitching * kMillisecond;
    return budget.overdraft(time, stitched).held_per_slack;
  };
  time.mapping = 100 * kMillisecond;  // something else, beyond the allowance
  REQUIRE(after(0, 80) == 0);
  REQUIRE(after(0, 1) == 768);
  REQUIRE(after(0, 9) == 384);
  REQUIRE(after(0, 60) == 6);
  REQUIRE(after(0, 100000) == 3);
  REQUIRE(after(790, 0) == 768);
  REQUIRE(after(20, 0) == 0);
}

TEST_CASE("stitching that takes more than it may at most lets four times as much be free") {
  constexpr std::uint64_t kMillisecond = 1'000'000;
  OnlinePolicy policy;
  policy.elapsed_per_mapping = 100;
  policy.elapsed_per_stitching = 10;
  policy.mapping_allowance = 80;
  policy.held_per_slack = 12;
  MappingBudget budget(policy);
  MappingTime time;
  const auto after = [&](std::uint64_t elapsed, std::uint64_t stitching) {
    time.elapsed += elapsed * kMillisecond;
    time.mapping += stitching * kMillisecond;
    return budget.overdraft(time, time.mapping).held_per_slack;
  };
  REQUIRE(after(0, 80) == 0);
  for (int i = 0; i < 100; ++i) REQUIRE(after(100, 9) >= 12);  // 9 % of the time, however long
  REQUIRE(after(0, 81) == 12);                                 // what was saved, and 1 owed of a tenth of the time, too
  REQUIRE(after(0, 39) == 6);                                  // half of the allowance
  REQUIRE(after(0, 40) == 3);
  REQUIRE(after(0, 100000) == 3);
  REQUIRE(after(10, 0) == 6);    // 1 of these 80 is paid by the time
  REQUIRE(after(790, 0) == 24);  // all of them, and 8 of what is owed of a hundredth
}

TEST_CASE("while stitching costs more than it may, a request grows rather than stitch, as long as little is free") {
  const auto slack = GENERATE(as<std::uint64_t>{}, 1, 1 << 20);
  CAPTURE(slack);
  SimulatedAllocator::Options options = simulation_options(kPage, 4000 * kPage);
  options.placement.policy.small_bytes = kPage / 2;
  options.placement.policy.smallest_stitched = kPage;
  options.placement.policy.mapping_allowance = 1;
  options.placement.policy.coarsest = 1;
  options.placement.policy.handles_per_exchanged = 1000;
  options.placement.policy.held_per_slack = slack;
  SimulatedAllocator allocator(options, NullBackend(1));
  std::vector<Place> blocks;
  for (int i = 0; i < 400; ++i) blocks.push_back(*allocator.allocate(2 * kPage, 1));
  for (std::size_t i = 0; i < blocks.size(); i += 2) allocator.defer_free(blocks[i], 2 * kPage, 1);
  for (std::uint64_t pages = 3; pages < 20; ++pages) REQUIRE(allocator.allocate(pages * kPage, 1));
  const bool grows = slack == 1;  // from the moment on when all of the allowance is owed
  CAPTURE(allocator.counts().views, allocator.placement().free_bytes() / kPage);
  REQUIRE((allocator.placement().physical_bytes() > 800 * kPage) == grows);
}

TEST_CASE("while stitching costs more than it may, small handles that are free come back as larger ones") {
  const bool over = GENERATE(false, true);
  const std::uint64_t pages = GENERATE(7, 8, 40);  // instead of so many handles there would be 1, 1, or 3
  CAPTURE(over, pages);
  SimulatedAllocator::Options options = simulation_options(kPage, 4000 * kPage);
  options.placement.policy.small_bytes = kPage / 2;
  options.placement.policy.smallest_stitched = kPage;
  options.placement.policy.mapping_allowance = 1;
  options.placement.policy.held_per_coarse_handle = 4;
  options.placement.policy.handles_per_exchanged = 8;
  options.placement.policy.held_per_slack = 1 << 20;
  options.placement.policy.elapsed_per_mapping = over ? 3 : 1;
  SimulatedAllocator allocator(options, NullBackend(200'000));
  std::vector<Place> blocks;
  for (int i = 0; i < 200; ++i) {
    allocator.defer_free(*allocator.allocate(kPage, 1), kPage, 1);  // time passes, which pays for a handle
    blocks.push_back(*allocator.allocate(kPage, 1));
  }
  for (std::size_t i = 0; i < blocks.size(); i += 2) allocator.defer_free(blocks[i], kPage, 1);
  REQUIRE(allocator.allocate(60 * kPage, 1));  // of 60 handles: 1.7 ms
  REQUIRE(allocator.counts().views == 1);
  REQUIRE(allocator.placement().handles().size() == 200);
  REQUIRE(allocator.allocate(pages * kPage, 1));
  const bool exchanges = over && pages > 7;
  REQUIRE((allocator.counts().views == 1) == exchanges);
  REQUIRE((allocator.placement().handles().size() < 200) == exchanges);
  REQUIRE(allocator.placement().physical_bytes() == 200 * kPage);
}

TEST_CASE("what a program gives back comes again in larger handles") {
  const auto times = GENERATE(as<std::uint64_t>{}, 2, 4);
  const bool enough = GENERATE(false, true);
  CAPTURE(times, enough);
  const std::uint64_t pages = 400 / times - (enough ? 0 : 1);  // that are given back, of 400
  SimulatedAllocator::Options options = simulation_options(kPage, 4000 * kPage);
  options.placement.policy.small_bytes = kPage / 2;
  options.placement.policy.coarsest = times;
  options.placement.policy.held_per_coarse_handle = 4;
  SimulatedAllocator allocator(options);
  std::vector<Place> blocks;
  for (int i = 0; i < 400; ++i) blocks.push_back(*allocator.allocate(kPage, 1));
  REQUIRE(allocator.placement().handles().size() == 400);
  for (std::size_t i = 0; i < pages; ++i) allocator.free(blocks[i], kPage, 1);
  allocator.backend().poll_frees();
  REQUIRE(allocator.memory().release_idle(0, false) == pages * kPage);
  const auto comes = [&](std::uint64_t wanted) {
    const std::size_t before = allocator.placement().handles().size();
    REQUIRE(allocator.allocate(wanted * kPage, 1));
    return allocator.placement().handles().size() - before;
  };
  REQUIRE(comes(16) == (enough ? 16 / times : 16));  // of a page, or so many times more
}

TEST_CASE("where more would be held than ever, free pages for small requests are given back first") {
  const auto divisor = GENERATE(as<std::uint64_t>{}, 0, 4, 8);  // 0: never; of 100 pages, 20 are free
  const bool is_most = GENERATE(false, true);                   // more would be held than ever
  CAPTURE(divisor, is_most);
  SimulatedAllocator::Options options = simulation_options(kPage, 4000 * kPage);
  options.placement.policy.small_bytes = kPage / 2;
  options.placement.policy.held_per_small = divisor;
  SimulatedAllocator allocator(options);
  std::vector<Place> blocks;
  for (int i = 0; i < 40; ++i) blocks.push_back(*allocator.allocate(kPage / 2, 1));
  REQUIRE(allocator.allocate(80 * kPage, 1));
  if (!is_most) {
    const Place given_back = *allocator.allocate(100 * kPage, 1);
    allocator.free(given_back, 100 * kPage, 1);
    allocator.backend().poll_frees();
    REQUIRE(allocator.memory().release_idle(0, false) == 100 * kPage);
  }
  REQUIRE(allocator.placement().physical_bytes() == 100 * kPage);
  for (const Place block : blocks) allocator.free(block, kPage / 2, 1);
  REQUIRE(allocator.allocate(15 * kPage, 1));
  const bool gives_back = divisor == 8 && is_most;
  REQUIRE(allocator.placement().physical_bytes() == (gives_back ? 100 : 115) * kPage);
  REQUIRE(allocator.placement().bytes_for_small() == (gives_back ? 5 : 20) * kPage);
}

TEST_CASE("where more would be held than ever, small requests that have much lie among large ones, if a page is free") {
  SimulatedAllocator::Options options = simulation_options(kPage, 1000 * kPage);
  options.placement.policy.small_bytes = kPage / 2;
  const bool is_much = GENERATE(true, false);  // one page of about a hundred
  options.placement.policy.held_per_small = is_much ? 200 : 50;
  SimulatedAllocator allocator(options);
  const HandlePlacement& placement = allocator.placement();
  const Place large = *allocator.allocate(100 * kPage, 1);
  REQUIRE(allocator.allocate(kPage / 4, 1));
  REQUIRE(placement.bytes_for_small() == kPage);  // there was no room elsewhere
  const bool is_freed = GENERATE(true, false);
  const bool is_most = GENERATE(true, false);
  CAPTURE(is_much, is_freed, is_most);
  if (!is_most) {
    const Place given_back = *allocator.allocate(50 * kPage, 1);
    allocator.free(given_back, 50 * kPage, 1);
    allocator.backend().poll_frees();
    REQUIRE(allocator.memory().release_idle(0, false) == 50 * kPage);
  }
  if (is_freed) allocator.free(large, 100 * kPage, 1);
  for (int i = 0; i < 20; ++i) REQUIRE(allocator.allocate(kPage / 2, 1));
  const std::uint64_t own = !is_freed || !is_most ? 11 : is_much ? 1 : 3;  // 3 of 103 are more than one of fifty
  REQUIRE(placement.physical_bytes() == (100 + own) * kPage);
  REQUIRE(placement.bytes_for_small() == own * kPage);
}

TEST_CASE("a program whose sizes never repeat exchanges its handles, and ends up mapping far less") {
  const auto seed = GENERATE(range(1U, 6U));
  struct Slack {
    std::uint64_t held_per_slack, elapsed_per_stitching, mapping_percent, most_percent;
  };
  const auto slack = GENERATE(values<Slack>({{1 << 20, 1, 75, 106}, {12, 1, 25, 115}, {12, 10, 8, 150}}));
  CAPTURE(seed, slack.held_per_slack, slack.elapsed_per_stitching);
  std::mt19937 random(seed);
  constexpr std::uint64_t kMostLive = 4000 * kPage;
  SimulatedAllocator::Options options = simulation_options(kPage, kMostLive);
  options.placement.policy.small_bytes = kPage / 2;
  options.placement.policy.smallest_stitched = kPage;
  options.placement.policy.mapping_allowance = 100;
  options.placement.policy.held_per_slack = slack.held_per_slack;
  options.placement.policy.elapsed_per_stitching = slack.elapsed_per_stitching;
  SimulatedAllocator allocator(options, NullBackend(20'000));
  std::vector<Live> live;
  std::uint64_t live_bytes = 0;
  const auto drop_one = [&] {
    std::swap(live[random() % live.size()], live.back());
    allocator.defer_free(live.back().place, live.back().bytes, live.back().stream);
    live_bytes -= live.back().bytes;
    live.pop_back();
  };
  const auto mapping_of = [&](int requests) {
    const std::uint64_t before = allocator.backend().mapping_time().mapping;
    for (int i = 0; i < requests; ++i) {
      const std::uint64_t bytes = (std::uint64_t{1} << random() % 8) * kPage + random() % 64 * kUnitBytes;
      while (live_bytes + bytes > kMostLive) drop_one();
      live.push_back({*allocator.allocate(bytes, 1), bytes, 1});
      live_bytes += bytes;
      if (random() % 5 < 2) drop_one();
    }
    return allocator.backend().mapping_time().mapping - before;
  };
  const std::uint64_t first = mapping_of(1000);
  mapping_of(4000);
  const std::uint64_t last = mapping_of(1000);
  CAPTURE(first, last, allocator.placement().physical_bytes() / kPage);
  REQUIRE(last * 100 < first * slack.mapping_percent);
  REQUIRE(allocator.placement().physical_bytes() * 100 <= slack.most_percent * kMostLive);
}

TEST_CASE("what is exchanged for larger handles is not exchanged forever") {
  const auto seed = GENERATE(range(1U, 6U));
  const std::uint64_t coarsest = GENERATE(1, 16);  // with 1 no handle becomes larger
  CAPTURE(seed, coarsest);
  std::mt19937 random(seed);
  SimulatedAllocator::Options options = simulation_options(kPage, 8000 * kPage);
  options.placement.policy.small_bytes = kPage / 2;
  options.placement.policy.smallest_stitched = kPage;
  options.placement.policy.mapping_allowance = 1;
  options.placement.policy.held_per_slack = 1 << 20;
  options.placement.policy.coarsest = coarsest;
  SimulatedAllocator allocator(options, NullBackend(1000));
  std::vector<Live> live;
  for (int i = 0; i < 2000; ++i) live.push_back({*allocator.allocate(kPage, 1), kPage, 1});
  const auto replace = [&](std::size_t which, std::uint64_t bytes) {
    allocator.free(live[which].place, live[which].bytes, 1);
    live[which] = {*allocator.allocate(bytes, 1), bytes, 1};
  };
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t bytes = (700 + random() % 300) * kPage;  // a request of many handles, whatever their size
    const Place place = *allocator.allocate(bytes, 1);
    for (int j = 0; j < 20; ++j) replace(random() % live.size(), kPage + random() % 2 * kUnitBytes);
    allocator.free(place, bytes, 1);
  }
  const std::uint64_t held = allocator.placement().physical_bytes() / kPage;
  CAPTURE(held, allocator.counts().handles, allocator.counts().views);
  REQUIRE(allocator.counts().views > 20);
  REQUIRE(allocator.counts().handles <= held + held / 2);
}

TEST_CASE("live requests share no byte, and every view shows whole handles, each once") {
  const auto seed = GENERATE(range(1U, 31U));
  CAPTURE(seed);
  std::mt19937 random(seed);
  const StreamIndex streams = 1 + seed % 3;
  SimulatedAllocator::Options options = simulation_options(kPage, 4000 * kPage);
  // OrderThenGrow: large requests look among their own stream's bytes first, too.
  options.cross_stream = seed % 2 == 0 ? CrossStream::Share : CrossStream::OrderThenGrow;
  options.placement.policy.small_bytes = kPage / 2;
  options.placement.policy.smallest_stitched = kPage;
  options.placement.policy.mapping_allowance = 1;
  options.placement.policy.held_per_coarse_handle = 8;
  const std::uint64_t between_frees = seed % 4 == 0 ? 1000 : 0;  // ns: then mapping costs more than it may
  SimulatedAllocator allocator(options, NullBackend(between_frees));
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
  for (std::uint32_t number = 1; number <= placement.views().numbers(); ++number) {
    REQUIRE(placement.views()[number].bytes() <= placement.views()[number].addresses.bytes());
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

TEST_CASE("no more views are made than may be kept") {
  const auto kept = GENERATE(as<std::uint64_t>{}, 0, 3);
  CAPTURE(kept);
  OnlinePolicy policy;
  policy.kept_views = kept;
  policy.small_bytes = kPage / 2;
  policy.smallest_stitched = kPage;
  SimulatedAllocator allocator(simulation_options(kPage, 4000 * kPage, policy));
  std::vector<Place> blocks;
  for (int i = 0; i < 100; ++i) blocks.push_back(*allocator.allocate(kPage, 1));
  for (std::size_t i = 0; i < blocks.size(); i += 2) allocator.free(blocks[i], kPage, 1);
  for (int i = 0; i < 10; ++i) REQUIRE(allocator.allocate(2 * kPage, 1));
  REQUIRE(allocator.counts().views == kept);
  REQUIRE(allocator.placement().physical_bytes() == (100 + 2 * (10 - kept)) * kPage);
}

TEST_CASE("a home view that is full serves nothing") {
  SimulatedAllocator::Options options = simulation_options(kPage, 0);
  SimulatedAllocator allocator(options);
  REQUIRE(allocator.allocate(options.placement.large.bytes() + kUnitBytes, 1) == std::nullopt);
  REQUIRE(allocator.placement().physical_bytes() == 0);
}

TEST_CASE("blocks that stay when memory is given back do not use up the home view") {
  OnlinePolicy policy;
  REQUIRE(set_policy("small_bytes=2K,smallest_stitched=4K", &policy).empty());
  SimulatedAllocator::Options options = simulation_options(kPage, 1000 * kPage, policy);
  SimulatedAllocator allocator(options);
  const auto give_back = [&allocator] {
    allocator.complete_deferred_free();
    allocator.backend().poll_frees_thoroughly();
    allocator.memory().unmap_idle_views();
    allocator.memory().release_idle(0, false);
  };
  const std::uint64_t rounds = options.placement.large.bytes() / (100 * kPage);
  for (std::uint64_t round = 0; round < rounds; ++round) {
    const std::uint64_t bytes = (100 + round % 3) * kPage;
    const auto ends = allocator.allocate(bytes, 1);
    REQUIRE(ends);
    REQUIRE(allocator.allocate(2 * kPage, 1));
    allocator.free(*ends, bytes, 1);
    give_back();
  }
  REQUIRE(allocator.allocate(1000 * kPage, 1));
}

TEST_CASE("of small handles with several pages, none is released while a part of it lives") {
  OnlinePolicy policy;
  REQUIRE(set_policy("small_bytes=64K,held_per_handle=16", &policy).empty());
  SimulatedAllocator allocator(simulation_options(kPage, 4000 * kPage, policy));
  REQUIRE(allocator.allocate(200 * kPage, 1));
  std::vector<Place> blocks;
  for (int i = 0; i < 80; ++i) blocks.push_back(*allocator.allocate(4 * kPage, 1));
  const auto& handles = allocator.placement().handles();
  REQUIRE(std::any_of(handles.begin(), handles.end(), [&](const auto& handle) {
    return allocator.placement().is_for_small(handle.first) && handle.second.bytes > kPage;
  }));
  for (const Place& block : blocks) allocator.free({block.view, block.offset}, 2 * kPage, 1);  // a half of each
  allocator.complete_deferred_free();
  allocator.backend().poll_frees_thoroughly();
  REQUIRE(allocator.allocate(600 * kPage, 1));
  for (const Place& block : blocks) {
    const auto handle = handles.upper_bound(block.offset + 3 * kPage);
    REQUIRE(handle != handles.begin());
    REQUIRE(std::prev(handle)->first + std::prev(handle)->second.bytes > block.offset + 3 * kPage);
  }
}
