// SPDX-License-Identifier: Apache-2.0
#include "plan/sequence/beginning.h"

#include <algorithm>

namespace stalloc::plan {
namespace {

constexpr std::size_t kRare = 4;  // one request in more than so many

}  // namespace

bool lives_through(const Problem& problem, std::size_t index) {
  const std::uint64_t count = problem.requests.size();
  return std::min(problem.requests[index].until, count) - index >= (count + 1) / 2;
}

SteadyState find_beginning(const Problem& problem) {
  SteadyState beginning;
  const std::size_t count = problem.requests.size();
  if (!problem.repeats) return beginning;
  std::size_t lasting = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (!lives_through(problem, i)) continue;
    ++lasting;
    if (lasting * kRare > i) beginning.begin = i + 1;
  }
  if (beginning.begin == count) return {};
  beginning.catch_all = true;
  beginning.period = 1;
  beginning.repetitions = count - beginning.begin;
  beginning.run_begin = beginning.begin;
  beginning.run_end = count;
  beginning.lives = {1};
  return beginning;
}

}  // namespace stalloc::plan
