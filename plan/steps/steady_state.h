// SPDX-License-Identifier: Apache-2.0
// The part of a run that repeats, step after step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/problem.h"
#include "plan/steps/runs.h"

namespace stalloc::plan {

inline constexpr std::size_t kNone = static_cast<std::size_t>(-1);  // no request, or no slot

// The sizes of one request of the body over all repetitions, in bytes.
struct Sizes {
  std::uint64_t smallest = 0;
  std::uint64_t largest = 0;
  std::uint32_t distinct = 0;  // of sizes rounded to kUnitBytes
  [[nodiscard]] bool vary() const { return distinct > 1; }
};

//   requests   0 ......... begin |-------|-------|-------| ....... n
//                prologue          body    body    body    epilogue
//                                  <period>
struct SteadyState {
  std::size_t begin = 0;        // of the first repetition
  std::size_t period = 0;       // requests of the body; 0: nothing repeats
  std::size_t repetitions = 0;  // whole ones
  // The stretch with this period that the repetitions were cut from: it may reach beyond them on both sides.
  std::size_t run_begin = 0;
  std::size_t run_end = 0;
  // No steady state at all: the body is one slot for any request (beginning.h).
  bool any = false;
  // Requests of the body outlive `unrolled - 1` steps: the body is that many steps long.
  std::size_t unrolled = 1;
  // For each request of the body: how many requests later it is freed at the latest, over all repetitions; kNever:
  // not within `period`, in some repetition that others follow.
  std::vector<std::uint64_t> lives;
  // For each request of the body, where it was found by call sites; else empty: all sizes are the same.
  std::vector<Sizes> sizes;

  [[nodiscard]] std::size_t end() const { return begin + period * repetitions; }
};

// How requests are compared: by their size rounded to kUnitBytes, or by the place in the program that makes them (the
// recorded stack); and by the stream in both cases.
enum class Sameness : std::uint8_t { Size, CallSite };

// Equal numbers for requests that are the same. Empty for CallSite where not every stack was recorded. O(n log n).
// Pure.
std::vector<std::uint32_t> tokens_of(const std::vector<Request>& requests, Sameness sameness);

// Finds the exactly repeating body in the sequence of (size rounded to kUnitBytes, stream) of a problem that `repeats`.
// Of all stretches that repeat at least twice it takes the longest, with the smallest period: a step, never a
// microbatch inside it. It must hold a quarter of all requests. The body begins where the fewest bytes live across its
// boundary, but behind what the first repetition makes to stay where later ones free the same: an optimizer's state
// has the sizes of the gradients. Requests that outlive their step make the body two or more steps long; those that
// outlive even that are leaks (see SteadyState::lives). If leaks are more than a sixteenth of the body's bytes, it is
// no steady state. Where no sizes repeat, it looks for the same in the sequence of (call site, stream): steps in which
// each request comes from the same place in the program and only sizes vary, as in a mixture of experts. Needs recorded
// stacks. `fewest_steps`: the body is made that many steps long, where the run is. O(n log n). Pure.
SteadyState find_steady_state(const Problem& problem, std::size_t fewest_steps = 1);
// Looks in one of the two sequences alone.
SteadyState find_steady_state(const Problem& problem, Sameness sameness, std::size_t fewest_steps = 1);

// The longest stretch that repeats, as above; a `period` of 0: none.
Run find_longest_run(const std::vector<std::uint32_t>& tokens);

}  // namespace stalloc::plan
