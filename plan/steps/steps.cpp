// SPDX-License-Identifier: Apache-2.0
#include "plan/steps/steps.h"

#include <utility>

namespace stalloc::plan {
namespace {

std::size_t repeating(const SteadyState& steady) { return steady.run_end - steady.run_begin; }

Steps find_by(const Problem& problem, RequestKey key) {
  Steps steps{find_steady_state(problem, key), {}};
  // An order by threads can show more only when the recorded order does not show all.
  const std::size_t count = problem.requests.size();
  const std::size_t found = repeating(steps.steady);
  if (!problem.repeats || repeats_as_recorded(steps.steady, count)) return steps;
  auto threads = order_by_threads(problem, key);
  if (!threads) return steps;
  SteadyState steady = find_steady_state(threads->problem, key);
  if (3 * repeating(steady) <= 4 * found || 4 * repeating(steady) < count) return steps;
  return {std::move(steady), std::move(threads)};
}

}  // namespace

Steps find_steps(const Problem& problem) {
  Steps steps = find_by(problem, RequestKey::Size);
  return steps.steady.period != 0 ? std::move(steps) : find_by(problem, RequestKey::CallSite);
}

}  // namespace stalloc::plan
