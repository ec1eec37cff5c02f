#include "plan/steady_state.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "plan/runs.h"

namespace stalloc::plan {
namespace {

constexpr std::size_t kMostUnrolled = 4;

std::vector<std::uint32_t> tokens_of(const std::vector<Request>& requests) {
  std::map<std::tuple<std::uint64_t, std::uint32_t, std::uint32_t>, std::uint32_t> numbers;
  std::vector<std::uint32_t> tokens;
  tokens.reserve(requests.size());
  for (const Request& request : requests) {
    const std::tuple key(round_up(request.size, kUnitBytes), request.stream, request.alloc_order);
    tokens.push_back(numbers.try_emplace(key, static_cast<std::uint32_t>(numbers.size())).first->second);
  }
  return tokens;
}

std::uint64_t life_of(const Request& request, std::size_t index) {
  return request.until == kNever ? kNever : request.until - index;
}

// For each phase of the run (request i has phase (i - run.begin) % run.period): the longest life. A request that is
// freed behind the run's end shows only that it lives at least that long: it counts where that is longer than what the
// others of its phase show, and not at all in the last period, where nothing follows it.
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

// Steps that the body must be long so that requests are freed before they are made again; leaks are left out.
// 0: too much of the body leaks.
std::size_t steps_needed(const std::vector<Request>& requests, const Run& run,
                         const std::vector<std::uint64_t>& lives) {
  const std::size_t period = lives.size();
  const std::size_t most = std::min(kMostUnrolled, (run.end - run.begin) / period);
  std::size_t steps = 1;
  std::uint64_t bytes = 0;
  std::uint64_t leaked = 0;
  for (std::size_t phase = 0; phase < period; ++phase) {
    const std::uint64_t size = requests[run.begin + phase].bytes();
    bytes += size;
    if (size == 0) continue;
    if (lives[phase] > most * period) {
      leaked += size;
    } else {
      steps = std::max(steps, static_cast<std::size_t>((lives[phase] + period - 1) / period));
    }
  }
  return leaked > bytes / 16 ? 0 : steps;
}

// Bytes live across the boundary before each phase, when the phases repeat for ever.
std::vector<std::uint64_t> crossing_bytes(const std::vector<Request>& requests, const Run& run,
                                          const std::vector<std::uint64_t>& lives) {
  const std::size_t period = lives.size();
  std::vector<std::uint64_t> change(period + 1, 0);  // modulo 2^64
  std::uint64_t always = 0;
  for (std::size_t phase = 0; phase < period; ++phase) {
    const std::uint64_t size = requests[run.begin + phase].bytes();
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

SteadyState cut(const std::vector<Request>& requests, const Run& run) {
  SteadyState steady;
  const std::vector<std::uint64_t> lives = longest_lives(requests, run);
  steady.unrolled = steps_needed(requests, run, lives);
  if (steady.unrolled == 0) return steady;
  steady.period = run.period * steady.unrolled;
  const std::vector<std::uint64_t> crossing = crossing_bytes(requests, run, lives);
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
  }
  return steady;
}

}  // namespace

SteadyState find_steady_state(const Problem& problem) {
  const std::size_t count = problem.requests.size();
  if (!problem.repeats || count < 2) return {};
  for (const Run& run : find_runs(tokens_of(problem.requests), std::max<std::size_t>(2, (count + 3) / 4))) {
    SteadyState steady = cut(problem.requests, run);
    if (steady.unrolled != 0) return steady;
  }
  return {};
}

}  // namespace stalloc::plan
