// SPDX-License-Identifier: Apache-2.0
#include "plan/running/repetition.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "catch.h"
#include "tests/unit/seeds.h"

using stalloc::plan::find_repetition;
using stalloc::plan::Repetition;

namespace {

// The longest end that repeats at least `times` times, by trying all.
Repetition find_naively(const std::vector<std::uint32_t>& sequence, std::size_t times) {
  Repetition found;
  for (std::size_t period = 1; period * times <= sequence.size(); ++period) {
    std::size_t length = period;
    const auto at = [&](std::size_t back) { return sequence[sequence.size() - 1 - back]; };
    while (length < sequence.size() && at(length) == at(length - period)) ++length;
    if (length >= period * times && length > found.length) found = {period, length};
  }
  return found;
}

std::vector<std::uint32_t> repeat(const std::vector<std::uint32_t>& step, int times) {
  std::vector<std::uint32_t> sequence;
  for (int i = 0; i < times; ++i) sequence.insert(sequence.end(), step.begin(), step.end());
  return sequence;
}

}  // namespace

TEST_CASE("the end of a sequence that repeats", "[plan][running]") {
  std::vector<std::uint32_t> sequence = repeat({1, 2, 2, 3}, 3);
  sequence.insert(sequence.begin(), {9, 9, 9, 9, 9});
  REQUIRE(find_repetition(sequence, 3).period == 4);
  REQUIRE(find_repetition(sequence, 3).length == 12);
  REQUIRE(find_repetition(sequence, 4).period == 0);
  sequence.push_back(7);
  REQUIRE(find_repetition(sequence, 2).period == 0);
  REQUIRE(find_repetition({}, 3).period == 0);
}

TEST_CASE("a step with a loop is found, not its loop", "[plan][running]") {
  const std::vector<std::uint32_t> step = {5, 6, 1, 2, 1, 2, 1, 2};
  REQUIRE(find_repetition(step, 3).period == 2);
  REQUIRE(find_repetition(repeat(step, 3), 3).period == step.size());
}

TEST_CASE("repetitions in random sequences", "[plan][running]") {
  const auto seed = static_cast<unsigned>(GENERATE(from_range(stalloc::seeds(59))));
  CAPTURE(seed);
  std::mt19937 random(seed);
  std::vector<std::uint32_t> step(random() % 12 + 1);
  for (std::uint32_t& number : step) number = random() % 3;
  std::vector<std::uint32_t> sequence(random() % 20);
  for (std::uint32_t& number : sequence) number = random() % 3;
  for (const std::uint32_t number : repeat(step, static_cast<int>(random() % 6))) sequence.push_back(number);
  sequence.resize(sequence.size() - std::min<std::size_t>(sequence.size(), random() % 5));
  const std::size_t times = random() % 3 + 2;
  const Repetition found = find_repetition(sequence, times);
  const Repetition expected = find_naively(sequence, times);
  REQUIRE(found.length == expected.length);
  REQUIRE(found.period == expected.period);
}
