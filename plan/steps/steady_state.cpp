// SPDX-License-Identifier: Apache-2.0
#include "plan/steps/steady_state.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace stalloc::plan {
namespace {

constexpr std::size_t kMostUnrolled = 4;
// There is no steady state if more than (the body's bytes / this) leak. Nor is there if more than (its requests / this)
// leak and it repeats fewer times than this: a few sizes may do so by chance.
constexpr std::uint64_t kBytesPerLeaked = 16;
constexpr std::size_t kRequestsPerLeak = 4;
constexpr std::size_t kRepetitionsOfLeaks = 3;

// Equal numbers for equal keys.
template <class Key>
std::vector<std::uint32_t> number(const std::vector<Request>& requests, Key key_of) {
  std::map<decltype(key_of(requests.front())), std::uint32_t> numbers;
  std::vector<std::uint32_t> tokens;
  tokens.reserve(requests.size());
  for (const Request& request : requests) {
    tokens.push_back(numbers.try_emplace(key_of(request), static_cast<std::uint32_t>(numbers.size())).first->second);
  }
  return tokens;
}

bool has_call_sites(const std::vector<Request>& requests) {
  return std::all_of(requests.begin(), requests.end(), [](const Request& request) { return request.stack != 0; });
}

// The sizes of each phase over the whole run.
std::vector<Sizes> sizes_of(const std::vector<Request>& requests, const Run& run) {
  std::vector<Sizes> sizes(run.period);
  std::vector<std::uint64_t> seen;
  for (std::size_t phase = 0; phase < run.period; ++phase) {
    seen.clear();
    Sizes& of = sizes[phase];
    of.smallest = of.largest = requests[run.begin + phase].size;
    for (std::size_t i = run.begin + phase; i < run.end; i += run.period) {
      of.smallest = std::min(of.smallest, requests[i].size);
      of.largest = std::max(of.largest, requests[i].size);
      seen.push_back(round_up(requests[i].size, kUnitBytes));
    }
    std::sort(seen.begin(), seen.end());
    of.distinct = static_cast<std::uint32_t>(std::unique(seen.begin(), seen.end()) - seen.begin());
  }
  return sizes;
}

std::uint64_t life_of(const Request& request, std::size_t index) {
  return request.until == kNever ? kNever : request.until - index;
}

// For each phase of the run (request i has phase (i - run.begin) % run.period): the longest life. For a request that is
// freed after the run's end only a lower bound is known: it counts if it is longer than the other lives of its phase,
// and is ignored in the last period, which nothing follows.
std::vector<std::uint64_t> longest_lives(const std::vector<Request>& requests, const Run& run) {
  std::vector<std::uint64_t> lives(run.period, 1);
  for (std::size_t i = run.begin; i < run.end; ++i) {
    if (requests[i].until > run.end) continue;
    std::uint64_t& longest = lives[(i - run.begin) % run.period];
    longest = std::max(longest, life_of(requests[i], i));
  }
  for (std::size_t i = run.begin; i + run.period < run.end; ++i) {
    if (requests[i].until <= run.end) continue;
    std::uint64_t& longest = lives[(i - run.begin) % run.period];
    if (longest <= run.end - i) longest = life_of(requests[i], i);
  }
  return lives;
}

std::uint64_t bytes_of(const Request& request, const Sizes& sizes) {
  return request.pass == PassReason::None ? round_up(sizes.largest, kUnitBytes) : 0;
}

// The number of steps that the body needs so that requests are freed before they are made again, leaks excepted. At
// least `fewest`, where the run is that long. 0: too much of the body leaks.
std::size_t steps_needed(const std::vector<Request>& requests, const Run& run, const std::vector<std::uint64_t>& lives,
                         const std::vector<Sizes>& sizes, std::size_t fewest) {
  const std::size_t period = lives.size();
  const std::size_t most = std::min(std::max(kMostUnrolled, fewest), (run.end - run.begin) / period);
  std::size_t steps = std::min(fewest, most);
  std::uint64_t bytes = 0;
  std::uint64_t leaked_bytes = 0;
  std::size_t leaks = 0;
  for (std::size_t phase = 0; phase < period; ++phase) {
    const std::uint64_t size = bytes_of(requests[run.begin + phase], sizes[phase]);
    bytes += size;
    if (size == 0) continue;
    if (lives[phase] > most * period) {
      leaked_bytes += size;
      ++leaks;
    } else {
      steps = std::max(steps, static_cast<std::size_t>((lives[phase] + period - 1) / period));
    }
  }
  const bool by_chance = leaks > period / kRequestsPerLeak && run.end - run.begin < kRepetitionsOfLeaks * period;
  return leaked_bytes > bytes / kBytesPerLeaked || by_chance ? 0 : steps;
}

// Bytes live across the boundary before each phase, when the phases repeat forever.
std::vector<std::uint64_t> crossing_bytes(const std::vector<Request>& requests, const Run& run,
                                          const std::vector<std::uint64_t>& lives, const std::vector<Sizes>& sizes) {
  const std::size_t period = lives.size();
  std::vector<std::uint64_t> change(period + 1, 0);  // modulo 2^64
  std::uint64_t always = 0;
  for (std::size_t phase = 0; phase < period; ++phase) {
    const std::uint64_t size = bytes_of(requests[run.begin + phase], sizes[phase]);
    if (lives[phase] == kNever || size == 0) continue;
    // Live at the boundaries phase + 1 ... phase + life - 1.
    const std::uint64_t boundaries = lives[phase] - 1;
    always += boundaries / period * size;
    const std::size_t from = (phase + 1) % period;
    const std::size_t to = from + boundaries % period;
    change[from] += size;
    change[std::min(to, period)] -= size;
    if (to > period) {
      change[0] += size;
      change[to - period] -= size;
    }
  }
  std::vector<std::uint64_t> bytes(period);
  std::uint64_t sum = always;
  for (std::size_t phase = 0; phase < period; ++phase) bytes[phase] = sum += change[phase];
  return bytes;
}

// The run without the part of its first repetition that makes what stays, where later repetitions make the same to free
// it: an optimizer's state, for instance, has the sizes of the gradients, and is made in the first step alone.
Run without_first_state(const std::vector<Request>& requests, Run run) {
  const std::uint64_t limit = kMostUnrolled * run.period;
  const std::size_t end = std::min(run.begin + run.period, run.end - 2 * run.period);  // two repetitions must be left
  std::size_t begin = run.begin;
  for (std::size_t i = run.begin; i < end; ++i) {
    const std::size_t next = i + run.period;
    if (life_of(requests[i], i) > limit && life_of(requests[next], next) <= limit) begin = i + 1;
  }
  run.begin = begin;
  return run;
}

SteadyState cut(const std::vector<Request>& requests, const Run& found, bool by_call_site, std::size_t fewest_steps) {
  SteadyState steady;
  const Run run = without_first_state(requests, found);
  const std::vector<Sizes> sizes = sizes_of(requests, run);
  const std::vector<std::uint64_t> lives = longest_lives(requests, run);
  steady.unrolled = steps_needed(requests, run, lives, sizes, fewest_steps);
  if (steady.unrolled == 0) return steady;
  steady.period = run.period * steady.unrolled;
  const std::vector<std::uint64_t> crossing = crossing_bytes(requests, run, lives, sizes);
  // Keep two repetitions where there are that many.
  const std::size_t length = run.end - run.begin;
  const std::size_t last = length - steady.period * std::min<std::size_t>(2, length / steady.period);
  std::size_t best = 0;
  for (std::size_t offset = 1; offset <= std::min(last, run.period - 1); ++offset) {
    if (crossing[offset] < crossing[best]) best = offset;
  }
  steady.begin = run.begin + best;
  steady.repetitions = (run.end - steady.begin) / steady.period;
  steady.run_begin = run.begin;
  steady.run_end = run.end;
  for (std::size_t i = 0; i < steady.period; ++i) {
    const std::uint64_t life = lives[(best + i) % run.period];
    steady.lives.push_back(life <= steady.period ? life : kNever);
    if (by_call_site) steady.sizes.push_back(sizes[(best + i) % run.period]);
  }
  return steady;
}

// The shortest stretch that counts as repeating.
std::size_t shortest(std::size_t requests) { return std::max<std::size_t>(2, (requests + 3) / 4); }

}  // namespace

std::vector<std::uint32_t> tokens_of(const std::vector<Request>& requests, RequestKey key, bool by_threads) {
  const auto lane = [by_threads](const Request& request) { return by_threads ? request.thread : 0; };
  if (key == RequestKey::Size) {
    return number(requests, [&lane](const Request& request) {
      return std::tuple(round_up(request.size, kUnitBytes), request.stream, request.allocation_stream, lane(request));
    });
  }
  if (!has_call_sites(requests)) return {};
  return number(requests, [&lane](const Request& request) {
    return std::tuple(request.module, request.stack, request.stream, request.allocation_stream, lane(request));
  });
}

Run find_longest_run(const std::vector<std::uint32_t>& tokens) {
  const std::vector<Run> runs = find_runs(tokens, shortest(tokens.size()));
  return runs.empty() ? Run{} : runs.front();
}

SteadyState find_steady_state(const Problem& problem, RequestKey key, std::size_t fewest_steps) {
  const std::vector<Request>& requests = problem.requests;
  if (!problem.repeats || requests.size() < 2) return {};
  const std::vector<std::uint32_t> tokens = tokens_of(requests, key, problem.by_threads);
  for (const Run& run : find_runs(tokens, shortest(tokens.size()))) {
    SteadyState steady = cut(requests, run, key == RequestKey::CallSite, fewest_steps);
    if (steady.unrolled != 0) return steady;
  }
  return {};
}

SteadyState find_steady_state(const Problem& problem, std::size_t fewest_steps) {
  SteadyState steady = find_steady_state(problem, RequestKey::Size, fewest_steps);
  return steady.period != 0 ? steady : find_steady_state(problem, RequestKey::CallSite, fewest_steps);
}

}  // namespace stalloc::plan
