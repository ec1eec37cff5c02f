// SPDX-License-Identifier: Apache-2.0
#include "plan/steps/late_frees.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "plan/steps/steady_state.h"
#include "plan/steps/steps.h"

namespace stalloc::plan {
namespace {

constexpr std::size_t kFewestRepetitions = 3;  // fewer do not tell which frees are late

// If few repetitions of the body are left: the whole stretch that repeats, in single steps. The late frees themselves
// may let the body begin later, or be several steps long. `unrolled` is then how many of the returned periods the body
// has.
SteadyState with_more_repetitions(SteadyState steady) {
  if (steady.period == 0 || steady.repetitions >= kFewestRepetitions) {
    steady.unrolled = 1;
    return steady;
  }
  steady.begin = steady.run_begin;
  steady.period /= steady.unrolled;
  steady.repetitions = (steady.run_end - steady.begin) / steady.period;
  return steady;
}

// Which request of the step a request of the repeating stretch corresponds to.
std::size_t slot_in_step(std::size_t request, const SteadyState& steady) {
  return (request - steady.run_begin) % steady.period;
}

// For each request of the step: its lives in all repetitions, the longest first. kNever: it lived for longer than the
// body. Lives that go on at the end of the stretch count only if they are that long, since their end is not known.
using LivesBySlot = std::vector<std::vector<std::uint64_t>>;

LivesBySlot lives_by_slot(const Problem& problem, const SteadyState& steady) {
  LivesBySlot lives(steady.period);
  for (std::size_t i = steady.run_begin; i < steady.run_end; ++i) {
    const std::uint64_t end = std::min<std::uint64_t>(problem.requests[i].until, steady.run_end);
    const bool is_long = end - i > steady.period * steady.unrolled;
    if (!is_long && problem.requests[i].until > end) continue;
    lives[slot_in_step(i, steady)].push_back(is_long ? kNever : end - i);
  }
  for (std::vector<std::uint64_t>& of_slot : lives) std::sort(of_slot.begin(), of_slot.end(), std::greater<>());
  return lives;
}

// How long a request of the step lives if the `dropped` latest frees of each do not count; kNever: not known.
std::uint64_t usual_life(const std::vector<std::uint64_t>& lives, std::size_t dropped) {
  return lives.empty() ? kNever : lives[std::min(dropped, (lives.size() - 1) / 2)];
}

// Lets no request of the repeating stretch live longer than that. Returns how many frees come earlier then.
std::uint64_t drop_late_frees(Problem& problem, const SteadyState& steady, const LivesBySlot& lives,
                              std::size_t dropped) {
  std::uint64_t late = 0;
  for (std::size_t i = steady.run_begin; i < steady.run_end; ++i) {
    Request& request = problem.requests[i];
    const std::uint64_t life = usual_life(lives[slot_in_step(i, steady)], dropped);
    if (life == kNever || request.until == kNever || request.until <= i + life) continue;
    request.upper -= request.until - (i + life);
    request.until = i + life;
    ++late;
  }
  return late;
}

std::uint64_t largest_in(const std::vector<std::uint64_t>& live, std::size_t from, std::size_t to) {
  const auto at = [&](std::size_t i) { return live.begin() + static_cast<std::ptrdiff_t>(i); };
  return from == to ? 0 : *std::max_element(at(from), at(to));
}

// How many frees of each request of the step may be dropped.
std::size_t most_dropped(const SteadyState& steady) { return (steady.repetitions - 1) / 2; }

// The peak of live bytes without the late frees of single repetitions: that of the repetition in the middle, or of what
// does not repeat, if it is higher. The stretch that repeats may reach into the latter: late frees there do not count.
std::uint64_t usual_peak(const Problem& problem, const SteadyState& steady, const LivesBySlot& lives) {
  const std::vector<std::uint64_t> live = live_bytes(problem);
  std::vector<std::uint64_t> peaks;
  for (std::size_t i = 0; i < steady.repetitions; ++i) {
    peaks.push_back(largest_in(live, steady.begin + i * steady.period, steady.begin + (i + 1) * steady.period));
  }
  const auto middle = peaks.begin() + static_cast<std::ptrdiff_t>((peaks.size() - 1) / 2);
  std::nth_element(peaks.begin(), middle, peaks.end());
  Problem without = problem;
  drop_late_frees(without, steady, lives, most_dropped(steady));
  const std::vector<std::uint64_t> least = live_bytes(without);
  return std::max({*middle, largest_in(least, 0, steady.begin), largest_in(least, steady.end(), least.size())});
}

// The peak of live bytes where every repetition lasts as long as that.
std::uint64_t peak_with(Problem problem, const SteadyState& steady, const LivesBySlot& lives, std::size_t dropped) {
  for (std::size_t i = steady.run_begin; i < steady.run_end; ++i) {
    const std::uint64_t life = usual_life(lives[slot_in_step(i, steady)], dropped);
    if (life != kNever && problem.requests[i].until != kNever) problem.requests[i].until = i + life;
  }
  return peak_live_bytes(problem);
}

}  // namespace

UsualFrees without_late_frees(Problem problem) {
  UsualFrees usual{std::move(problem), 0};
  if (!usual.problem.repeats) return usual;
  const SteadyState steady = with_more_repetitions(find_steady_state(usual.problem));
  if (steady.period == 0 || steady.repetitions < kFewestRepetitions) return usual;
  const LivesBySlot lives = lives_by_slot(usual.problem, steady);
  const std::uint64_t peak = usual_peak(usual.problem, steady, lives);
  const auto is_enough = [&](std::size_t dropped) {
    return peak_with(usual.problem, steady, lives, dropped) <= peak + peak / kPeakTolerance;
  };
  if (is_enough(0) || find_steps(usual.problem).threads) return usual;
  std::size_t dropped = 1;  // the fewest that are enough, or all that may be dropped
  for (std::size_t most = most_dropped(steady); dropped < most;) {
    const std::size_t middle = (dropped + most) / 2;
    if (is_enough(middle)) {
      most = middle;
    } else {
      dropped = middle + 1;
    }
  }
  usual.late = drop_late_frees(usual.problem, steady, lives, dropped);
  return usual;
}

}  // namespace stalloc::plan
