// SPDX-License-Identifier: Apache-2.0
// The part of a run that repeats in every step.
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
  // The stretch with this period from which the repetitions were cut: it may extend beyond them on both sides.
  std::size_t run_begin = 0;
  std::size_t run_end = 0;
  // True if nothing was found to repeat. The body is then one slot that stands for every later request (beginning.h).
  bool catch_all = false;
  // Steps in the body: more than one if requests outlive their step.
  std::size_t unrolled = 1;
  // For each request of the body: the largest number of requests until it is freed, over all repetitions. kNever: it is
  // not freed within `period` requests in some repetition that is not the last.
  std::vector<std::uint64_t> lives;
  // For each request of the body, if the body was found by call sites; otherwise empty, since the sizes do not vary.
  std::vector<Sizes> sizes;

  [[nodiscard]] std::size_t end() const { return begin + period * repetitions; }
};

// A request of the body lives for the longest of all repetitions, so more may be live in the plan than in the run: one
// part in so many of the recorded peak.
inline constexpr std::uint64_t kPeakTolerance = 1000;

// Whether three quarters of `requests` requests repeat in the order in which they were made. If not, each thread may
// have an order of its own.
inline bool repeats_as_recorded(const SteadyState& steady, std::size_t requests) {
  return 4 * (steady.run_end - steady.run_begin) >= 3 * requests;
}

// By what requests are compared: their size rounded to kUnitBytes, or their call site (the recorded stack). Both
// include the stream.
enum class RequestKey : std::uint8_t { Size, CallSite };

// Returns a number for each request, equal for requests with equal keys and, if `by_threads`, of the same thread. Empty
// for CallSite if some stacks were not recorded. O(n log n). Pure.
std::vector<std::uint32_t> tokens_of(const std::vector<Request>& requests, RequestKey key, bool by_threads);

// Finds the exactly repeating body in the sequence of (size rounded to kUnitBytes, stream) of a problem that
// `repeats`; in one that is `by_threads`, also by thread, since a slot belongs to one thread. Of all stretches that
// repeat at least twice it takes the longest, with the smallest period, so the period is a step and not a microbatch
// inside a step. The stretch must have a quarter of all requests. The body begins where the fewest bytes are live
// across its boundary, but after those requests of the first repetition that stay live although later repetitions
// free theirs: an optimizer's state has the sizes of the gradients. Requests that outlive their step make the body
// two or more steps long; those that outlive even that are leaks (see SteadyState::lives). If leaks are more than a
// sixteenth of the body's bytes, or more than a quarter of its requests and it repeats only twice, there is no
// steady state. Where no sizes repeat, repetitions are searched in the sequence of (call site, stream): steps in
// which each request comes from the same place in the program and only sizes vary, as in a mixture of experts. This
// needs recorded stacks. `fewest_steps`: the body has at least this many steps, if the run is long enough. O(n log
// n). Pure.
SteadyState find_steady_state(const Problem& problem, std::size_t fewest_steps = 1);
// Searches only the sequence of one key.
SteadyState find_steady_state(const Problem& problem, RequestKey key, std::size_t fewest_steps = 1);

// Returns the longest stretch that repeats, chosen as above. Its `period` is 0 if there is none. O(n log n). Pure.
Run find_longest_run(const std::vector<std::uint32_t>& tokens);

}  // namespace stalloc::plan
