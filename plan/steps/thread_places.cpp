// SPDX-License-Identifier: Apache-2.0
#include "plan/steps/thread_places.h"

#include <algorithm>

#include "plan/steps/steady_state.h"

namespace stalloc::plan {
namespace {

using Places = std::vector<std::int64_t>;

// One alignment of the thread with the others. Its repetitions are counted backwards from its last request, since in
// the first steps it fills its queue.
struct Alignment {
  std::size_t period = 0;   // requests of the thread in a repetition
  std::size_t covered = 0;  // requests that keep to it
  std::int64_t width = 0;   // the most that the places of one request differ
  Places earliest;          // of each request of a repetition, the last one first, as if in the last repetition
};

// The requests [begin, end) in repetitions of `period`, each `length` requests of the others long.
Alignment align(const Places& made_at, std::size_t begin, std::size_t end, std::size_t period, std::int64_t length) {
  Alignment result{period, 0, 0, {}};
  const std::int64_t spacing = made_at[end - 1] - made_at[end - 1 - period];
  if (std::abs(spacing - length) >= length) return result;
  Places latest;
  for (std::size_t back = 0; back < end - begin; ++back, ++result.covered) {
    const std::int64_t place = made_at[end - 1 - back] + static_cast<std::int64_t>(back / period) * length;
    if (back < period) {
      result.earliest.push_back(place);
      latest.push_back(place);
      continue;
    }
    const std::int64_t low = std::min(result.earliest[back % period], place);
    const std::int64_t high = std::max(latest[back % period], place);
    if (high - low >= length) break;
    result.width = std::max(result.width, high - low);
    result.earliest[back % period] = low;
    latest[back % period] = high;
  }
  return result;
}

// The alignment that most requests keep to, the closest of equals.
Alignment find_alignment(const Places& made_at, const Run& run, std::int64_t length) {
  Alignment best;
  for (std::size_t period = run.period; 2 * period <= run.end - run.begin; period += run.period) {
    Alignment next = align(made_at, run.begin, run.end, period, length);
    if (next.covered < 2 * period || next.covered < best.covered) continue;
    if (next.covered > best.covered || next.width < best.width) best = std::move(next);
  }
  return best;
}

// A request that was seen less often may not have been seen at its earliest place: it must not come before the one that
// it follows.
void put_in_order(Places& earliest, std::int64_t length) {
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < earliest.size(); ++i) {
      const bool last = i + 1 == earliest.size();
      std::int64_t& before = earliest[last ? 0 : i + 1];
      before = std::min(before, last ? earliest[i] + length : earliest[i]);
    }
  }
}

}  // namespace

std::optional<Places> find_places(const Places& made_at, const std::vector<std::uint32_t>& tokens, const Run& others,
                                  std::size_t steps) {
  const auto at = [&](std::size_t place) {
    const auto found = std::lower_bound(made_at.begin(), made_at.end(), static_cast<std::int64_t>(place));
    return static_cast<std::size_t>(found - made_at.begin());
  };
  const std::size_t begin = at(others.begin);
  const std::size_t end = at(others.end + 1);
  Run run = find_longest_run(
      {tokens.begin() + static_cast<std::ptrdiff_t>(begin), tokens.begin() + static_cast<std::ptrdiff_t>(end)});
  if (run.period == 0) return std::nullopt;
  run = {run.begin + begin, run.end + begin, run.period};
  const auto length = static_cast<std::int64_t>(others.period * steps);
  Alignment best = find_alignment(made_at, run, length);
  if (best.period == 0) return std::nullopt;
  put_in_order(best.earliest, length);

  Places places = made_at;
  for (std::size_t back = 0; back < best.covered; ++back) {
    const auto repetition = static_cast<std::int64_t>(back / best.period);
    places[run.end - 1 - back] = best.earliest[back % best.period] - repetition * length;
  }
  for (std::size_t i = run.end - best.covered; i-- > 0;) places[i] = std::min(places[i], places[i + 1]);
  return places;
}

}  // namespace stalloc::plan
