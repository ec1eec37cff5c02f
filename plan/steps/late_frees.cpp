// SPDX-License-Identifier: Apache-2.0
#include "plan/steps/late_frees.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "plan/steps/steady_state.h"

namespace stalloc::plan {
namespace {

// Which request of the body a request of the repeating stretch corresponds to.
std::size_t slot_in_body(std::size_t request, const SteadyState& steady) {
  return (request + steady.period - steady.begin) % steady.period;  // steady.begin < steady.run_begin + steady.period
}

// For each request of the body: its lives in all repetitions, the longest first. kNever: it lived for longer than the
// body. Lives that go on at the end of the stretch count only if they are that long, since their end is not known.
using LivesBySlot = std::vector<std::vector<std::uint64_t>>;

LivesBySlot lives_by_slot(const Problem& problem, const SteadyState& steady) {
  LivesBySlot lives(steady.period);
  for (std::size_t i = steady.run_begin; i < steady.run_end; ++i) {
    const std::uint64_t end = std::min<std::uint64_t>(problem.requests[i].until, steady.run_end);
    const bool is_long = end - i > steady.period;
    if (!is_long && problem.requests[i].until > end) continue;
    lives[slot_in_body(i, steady)].push_back(is_long ? kNever : end - i);
  }
  for (std::vector<std::uint64_t>& of_slot : lives) std::sort(of_slot.begin(), of_slot.end(), std::greater<>());
  return lives;
}

// The live bytes after each request. Pre: they fit a device.
std::vector<std::uint64_t> live_bytes(const Problem& problem) {
  std::vector<std::uint64_t> all(problem.requests.size(), 0);
  std::vector<std::uint64_t> freed(problem.requests.size(), 0);  // just before each request
  std::uint64_t live = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Request& request = problem.requests[i];
    live += request.bytes() - freed[i];
    all[i] = live;
    if (request.until < all.size()) freed[request.until] += request.bytes();
  }
  return all;
}

// The peak of live bytes without the late frees of single repetitions: that of the repetition in the middle, or of what
// does not repeat, if it is higher.
std::uint64_t usual_peak(const Problem& problem, const SteadyState& steady) {
  const std::vector<std::uint64_t> live = live_bytes(problem);
  const auto peak_in = [&](std::size_t from, std::size_t to) {
    return std::accumulate(live.begin() + static_cast<std::ptrdiff_t>(from),
                           live.begin() + static_cast<std::ptrdiff_t>(to), std::uint64_t{0},
                           [](std::uint64_t peak, std::uint64_t bytes) { return std::max(peak, bytes); });
  };
  std::vector<std::uint64_t> peaks;
  for (std::size_t i = 0; i < steady.repetitions; ++i) {
    peaks.push_back(peak_in(steady.begin + i * steady.period, steady.begin + (i + 1) * steady.period));
  }
  const auto middle = peaks.begin() + static_cast<std::ptrdiff_t>((peaks.size() - 1) / 2);
  std::nth_element(peaks.begin(), middle, peaks.end());
  return std::max({*middle, peak_in(0, steady.begin), peak_in(steady.end(), live.size())});
}

// How long a request of the body lives if the `dropped` latest frees of each do not count; kNever: not known.
std::uint64_t usual_life(const std::vector<std::uint64_t>& lives, std::size_t dropped) {
  return lives.empty() ? kNever : lives[std::min(dropped, (lives.size() - 1) / 2)];
}

// The peak of live bytes where every repetition lasts as long as that.
std::uint64_t peak_with(Problem problem, const SteadyState& steady, const LivesBySlot& lives, std::size_t dropped) {
  for (std::size_t i = steady.run_begin; i < steady.run_end; ++i) {
    const std::uint64_t life = usual_life(lives[slot_in_body(i, steady)], dropped);
    if (life != kNever && problem.requests[i].until != kNever) problem.requests[i].until = i + life;
  }
  return peak_live_bytes(problem);
}

}  // namespace

UsualFrees without_late_frees(Problem problem) {
  UsualFrees usual{std::move(problem), 0};
  if (!usual.problem.repeats) return usual;
  const SteadyState steady = find_steady_state(usual.problem);
  if (steady.period == 0 || steady.repetitions < 3) return usual;
  if (!repeats_as_recorded(steady, usual.problem.requests.size())) return usual;
  const LivesBySlot lives = lives_by_slot(usual.problem, steady);
  const std::uint64_t peak = usual_peak(usual.problem, steady);
  const auto is_enough = [&](std::size_t dropped) {
    return peak_with(usual.problem, steady, lives, dropped) <= peak + peak / kPeakTolerance;
  };
  if (is_enough(0)) return usual;
  std::size_t dropped = 1;  // the fewest that are enough, or all that may be dropped
  for (std::size_t most = (steady.repetitions - 1) / 2; dropped < most;) {
    const std::size_t middle = (dropped + most) / 2;
    if (is_enough(middle)) {
      most = middle;
    } else {
      dropped = middle + 1;
    }
  }
  for (std::size_t i = steady.run_begin; i < steady.run_end; ++i) {
    Request& request = usual.problem.requests[i];
    const std::uint64_t life = usual_life(lives[slot_in_body(i, steady)], dropped);
    if (life == kNever || request.until == kNever || request.until <= i + life) continue;
    request.upper -= request.until - (i + life);
    request.until = i + life;
    ++usual.late;
  }
  return usual;
}

}  // namespace stalloc::plan
