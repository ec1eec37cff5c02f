// SPDX-License-Identifier: Apache-2.0
#include "plan/steps/runs.h"

#include <algorithm>
#include <tuple>

namespace stalloc::plan {
namespace {

// Prefix hashes modulo the Mersenne prime 2^61 - 1: equal stretches in O(1), common extensions in O(log n).
class Hashes {
 public:
  explicit Hashes(std::span<const std::uint32_t> tokens) : prefix_(tokens.size() + 1), power_(tokens.size() + 1) {
    power_[0] = 1;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      prefix_[i + 1] = reduce(multiply(prefix_[i], kBase) + tokens[i] + 1);
      power_[i + 1] = multiply(power_[i], kBase);
    }
  }

  // Longest common stretch that begins at i and at j; i < j.
  [[nodiscard]] std::size_t forward(std::size_t i, std::size_t j) const {
    return longest(prefix_.size() - 1 - j, [&](std::size_t n) { return hash(i, n) == hash(j, n); });
  }
  // Longest common stretch that ends before i and before j; i < j.
  [[nodiscard]] std::size_t backward(std::size_t i, std::size_t j) const {
    return longest(i, [&](std::size_t n) { return hash(i - n, n) == hash(j - n, n); });
  }

 private:
  static constexpr std::uint64_t kPrime = (std::uint64_t{1} << 61) - 1;
  static constexpr std::uint64_t kBase = 0x16a5'3c8b'e1d4'97f3;  // any number below the prime

  static std::uint64_t reduce(std::uint64_t value) { return value >= kPrime ? value - kPrime : value; }
  static std::uint64_t multiply(std::uint64_t a, std::uint64_t b) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = Wide{a} * b;
    return reduce((static_cast<std::uint64_t>(product) & kPrime) + static_cast<std::uint64_t>(product >> 61));
  }
  [[nodiscard]] std::uint64_t hash(std::size_t at, std::size_t n) const {
    return reduce(prefix_[at + n] + kPrime - multiply(prefix_[at], power_[n]));
  }

  // The largest n <= limit for which `equal` holds; it holds for all smaller ones too. Most answers are small.
  template <class Equal>
  static std::size_t longest(std::size_t limit, Equal equal) {
    std::size_t low = 0;
    std::size_t step = 1;
    while (low + step <= limit && equal(low + step)) {
      low += step;
      step *= 2;
    }
    for (std::size_t high = std::min(limit, low + step - 1); low < high;) {
      const std::size_t middle = (low + high + 1) / 2;
      if (equal(middle)) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }

  std::vector<std::uint64_t> prefix_;
  std::vector<std::uint64_t> power_;
};

// Adds the runs whose periods are the longest Lyndon words under one order of the tokens (`upward` or its reverse).
void add_runs(std::span<const std::uint32_t> tokens, const Hashes& hashes, bool upward, std::size_t shortest,
              std::vector<Run>& runs) {
  const std::size_t n = tokens.size();
  std::vector<std::size_t> word_end(n);  // of the longest Lyndon word at i: where the next smaller suffix begins
  for (std::size_t i = n; i-- > 0;) {
    std::size_t j = i + 1;
    while (j < n) {
      const std::size_t common = hashes.forward(i, j);
      if (j + common == n) break;  // suffix j is a prefix of suffix i, thus smaller
      if ((tokens[i + common] < tokens[j + common]) != upward) break;
      j = word_end[j];
    }
    word_end[i] = j;
    if (j == n) continue;
    const std::size_t begin = i - hashes.backward(i, j);
    const std::size_t end = j + hashes.forward(i, j);
    const std::size_t period = j - i;
    if (end - begin >= std::max(2 * period, shortest)) runs.push_back({begin, end, period});
  }
}

bool holds(std::span<const std::uint32_t> tokens, const Run& run) {
  for (std::size_t i = run.begin; i + run.period < run.end; ++i) {
    if (tokens[i] != tokens[i + run.period]) return false;
  }
  return true;
}

}  // namespace

std::vector<Run> find_runs(std::span<const std::uint32_t> tokens, std::size_t shortest) {
  const Hashes hashes(tokens);
  std::vector<Run> runs;
  add_runs(tokens, hashes, true, shortest, runs);
  add_runs(tokens, hashes, false, shortest, runs);
  const auto key = [](const Run& run) { return std::tuple(run.begin - run.end, run.period, run.begin); };
  std::sort(runs.begin(), runs.end(), [key](const Run& a, const Run& b) { return key(a) < key(b); });
  const auto same = [key](const Run& a, const Run& b) { return key(a) == key(b); };
  runs.erase(std::unique(runs.begin(), runs.end(), same), runs.end());
  std::erase_if(runs, [tokens](const Run& run) { return !holds(tokens, run); });
  return runs;
}

}  // namespace stalloc::plan
