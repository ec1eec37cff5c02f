// SPDX-License-Identifier: Apache-2.0
// Contiguous placement: sound by a naive check, optimal where the optimum is known, and part of a plan that the checker
// accepts.
#include "plan/layout/contiguous.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "catch.h"
#include "plan/checker.h"
#include "plan/lifetimes.h"
#include "plan/packing/search.h"
#include "plan/planner.h"
#include "samples.h"
#include "tests/unit/seeds.h"

using namespace stalloc::plan;

namespace {

using Answer = ContiguousSearch::Answer;

bool overlap(const Buffer& a, const Buffer& b) {
  for (const auto& [lower, upper] : a.spans) {
    for (const auto& [other_lower, other_upper] : b.spans) {
      if (lower < other_upper && other_lower < upper) return true;
    }
  }
  return false;
}

bool sound(const std::vector<Buffer>& buffers, const Packing& packing) {
  for (std::size_t a = 0; a < buffers.size(); ++a) {
    if (packing.offsets[a] + buffers[a].bytes > packing.bytes) return false;
    for (std::size_t b = 0; b < a; ++b) {
      const bool apart = packing.offsets[a] + buffers[a].bytes <= packing.offsets[b] ||
                         packing.offsets[b] + buffers[b].bytes <= packing.offsets[a];
      if (!apart && overlap(buffers[a], buffers[b])) return false;
    }
  }
  return true;
}

std::vector<Buffer> random_buffers(std::mt19937& random, std::size_t count, std::size_t most_spans) {
  std::vector<Buffer> buffers(count);
  for (Buffer& buffer : buffers) {
    std::uint64_t at = random() % 30;
    for (std::size_t span = 1 + random() % most_spans; span > 0; --span) {
      const std::uint64_t lower = at + random() % 10;
      at = lower + 1 + random() % 20;
      buffer.spans.emplace_back(lower, at);
    }
    buffer.bytes = 1 + random() % 50;
  }
  return buffers;
}

std::vector<Rectangle> rectangles_of(const std::vector<Buffer>& buffers) {
  std::vector<Rectangle> rectangles;
  for (const Buffer& buffer : buffers) {
    rectangles.push_back({buffer.spans.front().first, buffer.spans.front().second, buffer.bytes});
  }
  return rectangles;
}

// The smallest result of first fit over all orders; some order gives the optimum.
std::uint64_t least_bytes(const std::vector<Buffer>& buffers) {
  std::vector<std::size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  GreedyPacker packer(buffers);
  std::uint64_t least = ~std::uint64_t{0};
  do {
    least = std::min(least, packer.pack(order, GreedyPacker::Gap::First, nullptr)->bytes);
  } while (std::next_permutation(order.begin(), order.end()));
  return least;
}

// Cuts a square of `bytes` by `time` into rectangles: a packing without a hole exists.
void cut(std::mt19937& random, std::uint64_t lower, std::uint64_t upper, std::uint64_t bytes, int depth,
         std::vector<Buffer>& out) {
  if (depth == 0 || upper - lower < 2 || bytes < 2) {
    out.push_back({.spans = {{lower, upper}}, .bytes = bytes});
  } else if (random() % 2 == 0) {
    const std::uint64_t middle = lower + 1 + random() % (upper - lower - 1);
    cut(random, lower, middle, bytes, depth - 1, out);
    cut(random, middle, upper, bytes, depth - 1, out);
  } else {
    const std::uint64_t part = 1 + random() % (bytes - 1);
    cut(random, lower, upper, part, depth - 1, out);
    cut(random, lower, upper, bytes - part, depth - 1, out);
  }
}

// Stops after so many questions, whatever the time.
std::function<bool()> patience(int questions) {
  return [left = questions]() mutable { return --left < 0; };
}

}  // namespace

TEST_CASE("greedy packing is sound, for buffers that come back too") {
  std::mt19937 random(1);
  for (int round = 0; round < 100; ++round) {
    const std::vector<Buffer> buffers = random_buffers(random, 1 + random() % 60, 3);
    std::vector<std::size_t> order(buffers.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    GreedyPacker packer(buffers);
    for (const auto gap : {GreedyPacker::Gap::First, GreedyPacker::Gap::Best}) {
      const Packing packing = *packer.pack(order, gap, nullptr);
      REQUIRE(sound(buffers, packing));
      REQUIRE(packing.bytes >= peak_bytes(buffers));
    }
  }
}

TEST_CASE("the search finds what there is, and says when there is nothing") {
  std::mt19937 random(2);
  for (int round = 0; round < 60; ++round) {
    const std::vector<Buffer> buffers = random_buffers(random, 2 + random() % 6, 1);
    const std::uint64_t least = least_bytes(buffers);
    ContiguousSearch search(rectangles_of(buffers));
    for (int rule = 0; rule < 4; ++rule) {
      std::vector<double> priority(buffers.size());
      for (double& value : priority) value = static_cast<double>(random());
      const auto never = [] { return false; };
      REQUIRE(search.run(least - 1, priority, 1'000'000, never) == Answer::Impossible);
      REQUIRE(search.run(least, priority, 1'000'000, never) == Answer::Found);
      REQUIRE(sound(buffers, {.offsets = search.offsets(), .bytes = least}));
    }
  }
}

TEST_CASE("the search gives up when it is told to") {
  std::mt19937 random(3);
  std::vector<Buffer> buffers;
  cut(random, 0, 1 << 20, 1 << 20, 8, buffers);
  ContiguousSearch search(rectangles_of(buffers));
  const std::vector<double> priority(buffers.size(), 0.0);
  REQUIRE(search.run(1 << 20, priority, 5, [] { return false; }) == Answer::GaveUp);
  REQUIRE(search.run(1 << 20, priority, 1 << 20, [] { return true; }) == Answer::GaveUp);
}

TEST_CASE("packings without a hole are found") {
  std::mt19937 random(4);
  for (int round = 0; round < 10; ++round) {
    std::vector<Buffer> buffers;
    cut(random, 0, 1000, 1000, 6, buffers);
    const Packing packing =
        pack_contiguous(buffers, {.granularity = 1, .capacity = 0, .streams = {}, .stop = patience(20000)});
    REQUIRE(sound(buffers, packing));
    REQUIRE(packing.bytes == 1000);
  }
}

TEST_CASE("improvement never makes a packing worse, and a capacity is enough") {
  std::mt19937 random(5);
  for (int round = 0; round < 10; ++round) {
    const std::vector<Buffer> buffers = random_buffers(random, 80, round % 2 == 0 ? 1 : 2);
    const Packing rules = pack_contiguous(buffers, {.granularity = 1, .capacity = 0, .streams = {}, .stop = nullptr});
    const Packing better =
        pack_contiguous(buffers, {.granularity = 1, .capacity = 0, .streams = {}, .stop = patience(200)});
    REQUIRE(sound(buffers, rules));
    REQUIRE(sound(buffers, better));
    REQUIRE(better.bytes <= rules.bytes);
    REQUIRE(better.bytes >= peak_bytes(buffers));
    const Packing enough =
        pack_contiguous(buffers, {.granularity = 1, .capacity = rules.bytes, .streams = {}, .stop = patience(200)});
    REQUIRE(enough.bytes <= rules.bytes);
  }
  REQUIRE(pack_contiguous({}, {.granularity = 1, .capacity = 0, .streams = {}, .stop = nullptr}).bytes == 0);
}

TEST_CASE("contiguous plans of training runs are sound, in one handle and one view") {
  for (const std::uint64_t seed : stalloc::seeds(8)) {
    const Lifetimes lifetimes = find_lifetimes(stalloc::test::training_trace(seed, 5, 3));
    const Problem& problem = lifetimes.devices.at(0);
    for (const StreamMode streams : {StreamMode::Order, StreamMode::Isolate}) {
      PlanOptions options;
      options.granularity = 4096;
      options.streams = streams;
      options.contiguous = true;
      options.contiguous_seconds = 0;
      const auto planned = plan_device(problem, options);
      REQUIRE(planned.ok());
      const DevicePlan& plan = planned.value.plan;
      CHECK(find_unsoundness(problem, plan).empty());
      CHECK(plan.handles.size() == 1);
      CHECK(plan.views.size() == 1);
      CHECK(plan.body > 0);
    }
  }
}

TEST_CASE("the time limit ends a packing too; the first one is always packed") {
  std::vector<Buffer> buffers;
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < 3000; ++i) {
    buffers.push_back({.spans = {{i, i + 50}}, .bytes = 1 + i * 7919 % 1000});
    order.push_back(i);
  }
  GreedyPacker packer(buffers);
  int asked = 0;
  CHECK_FALSE(packer.pack(order, GreedyPacker::Gap::First, [&asked] { return ++asked == 3; }));
  CHECK(asked == 3);
  asked = 0;
  const Packing packing = pack_contiguous(buffers, {.granularity = 512, .stop = [&asked] { return ++asked > 0; }});
  CHECK(packing.offsets.size() == buffers.size());
  CHECK(packing.bytes >= peak_bytes(buffers));
  CHECK(asked <= 2);
}
