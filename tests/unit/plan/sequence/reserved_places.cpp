// SPDX-License-Identifier: Apache-2.0
#include "plan/sequence/reserved_places.h"

#include <vector>

#include "catch.h"

using namespace stalloc::plan;

namespace {

struct Made {
  std::uint64_t bytes;
  std::size_t upper;
};

// A prologue, and a body of one slot that takes `step` bytes.
Sequence sequence_of(const std::vector<Made>& prologue, std::uint64_t step) {
  Sequence sequence;
  sequence.prologue = prologue.size();
  sequence.body = 1;
  for (const Made& made : prologue) {
    SequenceSlot& entry = sequence.slots.emplace_back();
    entry.lower = sequence.slots.size() - 1;
    entry.bytes = made.bytes;
    entry.upper = made.upper;
  }
  SequenceSlot& body = sequence.slots.emplace_back();
  body.lower = sequence.prologue;
  body.bytes = step;
  body.upper = sequence.slots.size();
  return sequence;
}

std::vector<std::size_t> kept(Sequence sequence) {
  reserve_places(sequence);
  std::vector<std::size_t> lower;
  for (const SequenceSlot& entry : sequence.slots) lower.push_back(entry.lower);
  return lower;
}

using Lower = std::vector<std::size_t>;
constexpr std::size_t kEnd = 4;  // of a prologue of three slots and the body

}  // namespace

TEST_CASE("what lives through the body keeps its place from the first slot on") {
  // weights, what the first step works with, the optimizer's state: beside the body they all live at once
  CHECK(kept(sequence_of({{10, kEnd}, {8, 2}, {4, kEnd}}, 8)) == Lower{0, 1, 0, 3});
  // freed before the body is over
  CHECK(kept(sequence_of({{10, kEnd}, {8, 2}, {4, 3}}, 8)) == Lower{0, 1, 2, 3});
}

TEST_CASE("no place is kept where the peak would rise") {
  CHECK(kept(sequence_of({{10, kEnd}, {9, 2}, {4, kEnd}}, 8)) == Lower{0, 1, 2, 3});
  // the earlier of two that would raise it together
  Sequence two = sequence_of({{10, 1}, {4, kEnd}, {4, kEnd}}, 8);
  CHECK(kept(two) == Lower{0, 0, 2, 3});
}

TEST_CASE("a run without a body keeps no places") {
  Sequence sequence = sequence_of({{10, 1}, {4, kEnd}, {4, kEnd}}, 8);
  sequence.prologue = sequence.slots.size();
  sequence.body = 0;
  CHECK(kept(sequence) == Lower{0, 1, 2, 3});
}

TEST_CASE("a kept place counts as taken from the first slot on") {
  Sequence sequence = sequence_of({{10, kEnd}, {8, 2}, {4, kEnd}}, 8);
  reserve_places(sequence);
  CHECK(lives_of(sequence, 2)[0].begin == 0);
  CHECK(lives_of(sequence, 2)[0].end == kEnd);
}
