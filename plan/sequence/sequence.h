// SPDX-License-Identifier: Apache-2.0
// The planned order of requests: prologue, one repetition of the body, epilogue, with lifetimes on that time line.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/placement/free_space.h"
#include "plan/problem.h"
#include "plan/steps/steady_state.h"

namespace stalloc::plan {

enum class StreamMode : std::uint8_t {
  Order,   // bytes freed on one stream may go to another, after an event
  Isolate  // bytes of one stream never go to another
};

// One slot of the plan before it has a place. Times are indices of slots. If `upper` or `tail` is the number of slots,
// the request is never freed.
struct SequenceSlot {
  std::size_t request = 0;  // index into Problem::requests; in the body: the request of the first repetition
  std::uint64_t bytes = 0;  // to be placed; 0: takes nothing
  // If sizes vary from step to step, the largest that was seen, in bytes, for which `bytes` suffices. Otherwise 0.
  std::uint64_t largest = 0;
  PassReason pass = PassReason::None;
  std::size_t lower = 0;  // no other slot has its bytes from this time on: its own, or an earlier one (reserve_places)
  // The request is freed before slot `upper`. In the body this is the longest lifetime over all repetitions. Beyond the
  // body's end it wraps: the request is freed before slot `upper - body` of the next repetition.
  std::size_t upper = 0;
  // In the body: a request that outlives the last repetition is freed before this slot of the epilogue. Otherwise 0.
  std::size_t tail = 0;
  std::uint32_t allocation_stream = 0;  // as in the Request; in the body: of the first repetition
  std::uint32_t free_stream = 0;
  // The slot whose place this one takes; kNone for most.
  //   Body: the slot lives across the body's end. When the body begins for the first time, the twin in the prologue is
  //   live in its place, as the slot of a previous repetition would be. Required: both have the same bytes and stream,
  //   and never live at the same time.
  //   Epilogue: the same request in the body, where the run continues with a part of a repetition. A program that is
  //   served cannot be told to be in the epilogue before that part ends, so it gets the places of the body there.
  //   Preferred: another place is possible.
  std::size_t twin = kNone;
};

// The slots in the order of their requests.
struct Sequence {
  std::vector<SequenceSlot> slots;
  std::size_t prologue = 0;  // slots before the body
  std::size_t body = 0;      // slots of the body; 0: nothing repeats
  [[nodiscard]] std::size_t body_end() const { return prologue + body; }
  [[nodiscard]] bool in_body(std::size_t slot) const { return slot >= prologue && slot < body_end(); }
  // Whether the slot lives across the body's end.
  [[nodiscard]] bool wraps(std::size_t slot) const { return in_body(slot) && slots[slot].upper > body_end(); }
};

// Returns the stretches of time during which slot `index` takes bytes: at most two half-open ranges [begin, end). The
// second is empty unless the slot lives across the body's end.
std::array<Range, 2> lives_of(const Sequence& sequence, std::size_t index);

// Maps a problem onto slots. Where sizes vary (SteadyState::sizes), choose_dynamic decides which slots take bytes;
// where nothing repeats (SteadyState::catch_all), only slots of requests that live through the run take bytes. Marks
// the leaks of SteadyState as PassReason::Leaked. Marks requests as Unordered if the next use of their bytes could not
// be ordered after their free: they were made by cudaMalloc and freed on a stream or, with StreamMode::Isolate, freed
// on another stream than the one they were made on.
Sequence make_sequence(const Problem& problem, const SteadyState& steady, StreamMode streams);

// Returns the slot that serves request `index` of the problem. O(1). Pure.
std::size_t slot_of(const Sequence& sequence, const SteadyState& steady, std::size_t index);

}  // namespace stalloc::plan
