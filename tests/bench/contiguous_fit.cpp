// SPDX-License-Identifier: Apache-2.0
// How much one contiguous range must have for tensors of random size and life, when nothing is ever moved or mapped
// anew: the bound for an allocator that may not map. The tensors are those of tests/gpu/bench_programs.py, `random`:
// sizes of 2^10 to 2^29 bytes, evenly in their logarithm, of which up to 24 GiB live.
//
//   contiguous_fit [TURNS]    a turn makes 1500 tensors; default: 1000
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace {

constexpr std::uint64_t kMostLive = std::uint64_t{24} << 30;
constexpr std::uint64_t kUnit = 512;

enum class Fit { Best, First };

// A range that grows at its end. Free neighbors are joined.
class Range {
 public:
  explicit Range(Fit fit) : fit_(fit) {}

  std::uint64_t allocate(std::uint64_t bytes) {
    const auto hole = find(bytes);
    if (hole == holes_.end()) return grow(bytes);
    const auto [at, size] = *hole;
    erase(hole);
    if (size > bytes) insert(at + bytes, size - bytes);
    return at;
  }
  void free(std::uint64_t at, std::uint64_t bytes) {
    const auto behind = holes_.lower_bound(at);
    if (behind != holes_.begin()) {
      const auto before = std::prev(behind);
      if (before->first + before->second == at) {
        at = before->first;
        bytes += before->second;
        erase(before);
      }
    }
    if (behind != holes_.end() && behind->first == at + bytes) {
      bytes += behind->second;
      erase(behind);
    }
    insert(at, bytes);
  }
  [[nodiscard]] std::uint64_t size() const { return size_; }

 private:
  using Holes = std::map<std::uint64_t, std::uint64_t>;  // size by address

  Holes::iterator find(std::uint64_t bytes) {
    if (fit_ == Fit::First) {
      return std::find_if(holes_.begin(), holes_.end(), [&](const auto& hole) { return hole.second >= bytes; });
    }
    const auto best = by_size_.lower_bound({bytes, 0});
    return best == by_size_.end() ? holes_.end() : holes_.find(best->second);
  }
  std::uint64_t grow(std::uint64_t bytes) {
    std::uint64_t at = size_;
    if (!holes_.empty()) {
      const auto last = std::prev(holes_.end());
      if (last->first + last->second == size_) {
        at = last->first;
        erase(last);
      }
    }
    size_ = at + bytes;
    return at;
  }
  void insert(std::uint64_t at, std::uint64_t bytes) {
    holes_[at] = bytes;
    by_size_.insert({bytes, at});
  }
  void erase(Holes::iterator hole) {
    by_size_.erase({hole->second, hole->first});
    holes_.erase(hole);
  }

  Fit fit_;
  Holes holes_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_size_;
  std::uint64_t size_ = 0;
};

double size_to_live(Fit fit, int turns) {
  std::mt19937_64 random(7);
  const auto even = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
  Range range(fit);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> live;
  std::uint64_t bytes_live = 0;
  std::uint64_t most_live = 0;
  const auto drop = [&] {
    const std::size_t index = random() % live.size();
    range.free(live[index].first, live[index].second);
    bytes_live -= live[index].second;
    live[index] = live.back();
    live.pop_back();
  };
  for (int i = 0; i < 1500 * turns; ++i) {
    const auto size = static_cast<std::uint64_t>(std::exp2(10 + 19 * even()));
    const std::uint64_t bytes = (size + kUnit - 1) / kUnit * kUnit;
    while (bytes_live + bytes > kMostLive) drop();
    live.emplace_back(range.allocate(bytes), bytes);
    bytes_live += bytes;
    most_live = std::max(most_live, bytes_live);
    if (even() < 0.4) drop();
  }
  return static_cast<double>(range.size()) / static_cast<double>(most_live);
}

}  // namespace

int main(int count, char** words) {
  const int turns = count > 1 ? std::atoi(words[1]) : 1000;
  if (turns < 1) {
    std::fprintf(stderr, "contiguous_fit: the number of turns must be a positive number\n");
    return 2;
  }
  std::printf("%d turns; of live bytes at their peak, one contiguous range needs\n", turns);
  std::printf("  best fit   %.4f\n  first fit  %.4f\n", size_to_live(Fit::Best, turns),
              size_to_live(Fit::First, turns));
  return 0;
}
