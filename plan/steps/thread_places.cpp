// SPDX-License-Identifier: Apache-2.0
#include "plan/steps/thread_places.h"

#include <algorithm>
#include <tuple>

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

// What the first requests of the repetitions alone say of an alignment.
struct Outlook {
  std::size_t period = 0;
  std::size_t covered = 0;  // no more requests can keep to it
  std::int64_t width = 0;   // its width is no smaller if so many do
};

Outlook look_ahead(const Places& made_at, std::size_t begin, std::size_t end, std::size_t period, std::int64_t length) {
  std::int64_t low = made_at[end - 1];
  std::int64_t high = low;
  Outlook result{period, end - begin, 0};
  std::int64_t repetition = 0;
  for (std::size_t back = 0; back < end - begin; back += period, ++repetition) {
    const std::int64_t place = made_at[end - 1 - back] + repetition * length;
    low = std::min(low, place);
    high = std::max(high, place);
    if (high - low >= length) {
      result.covered = back;
      break;
    }
    result.width = high - low;
  }
  return result;
}

// Every period that may align the thread with the others, the most promising first.
std::vector<Outlook> find_outlooks(const Places& made_at, const Run& run, std::int64_t length) {
  std::vector<Outlook> outlooks;
  for (std::size_t period = run.period; 2 * period <= run.end - run.begin; period += run.period) {
    const Outlook next = look_ahead(made_at, run.begin, run.end, period, length);
    if (next.covered >= 2 * period) outlooks.push_back(next);
  }
  std::sort(outlooks.begin(), outlooks.end(), [](const Outlook& a, const Outlook& b) {
    return std::tuple(b.covered, a.width, a.period) < std::tuple(a.covered, b.width, b.period);
  });
  return outlooks;
}

// The alignment that most requests keep to, of equals the closest, then that of the smallest period. Where a thread
// makes the same request again and again, most periods are ruled out before all requests are looked at.
Alignment find_alignment(const Places& made_at, const Run& run, std::int64_t length) {
  const auto key = [](const auto& of) { return std::tuple(~of.covered, of.width, of.period); };
  Alignment best;
  for (const Outlook& outlook : find_outlooks(made_at, run, length)) {
    if (outlook.covered < best.covered) break;
    if (best.period != 0 && key(outlook) > key(best)) continue;
    Alignment next = align(made_at, run.begin, run.end, outlook.period, length);
    if (next.covered < 2 * outlook.period) continue;
    if (best.period == 0 || key(next) < key(best)) best = std::move(next);
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
