// A set of free byte ranges with best-fit search.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace stalloc::plan {

// Half-open [begin, end), in bytes.
struct Range {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  [[nodiscard]] std::uint64_t bytes() const { return end - begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

// Maximal free ranges: no two touch. Every operation is O(log n) in the number of ranges, plus the ranges it spans.
class FreeSpace {
 public:
  // Makes all of `range` free, whatever was free of it before.
  void add(Range range);
  // Makes none of `range` free, whatever was free of it before.
  void subtract(Range range);
  void clear();

  [[nodiscard]] bool contains(Range range) const;
  // Appends the free parts of `range`.
  void intersect(Range range, std::vector<Range>& out) const;
  // The smallest free range of at least `bytes`; among equals the lowest.
  [[nodiscard]] std::optional<Range> best_fit(std::uint64_t bytes) const;
  // Writes the smallest free ranges of at least `bytes`, the smallest first, as many as `out` holds; returns how many.
  std::size_t fits(std::uint64_t bytes, std::span<Range> out) const;
  [[nodiscard]] std::uint64_t largest() const { return sizes_.empty() ? 0 : sizes_.rbegin()->first; }  // bytes
  // The first free range of at least `bytes` from the low or the high end. Looks at the first kMostLookedAt only, so
  // that the cost stays bounded; nothing when none of them is large enough.
  [[nodiscard]] std::optional<Range> lowest_fit(std::uint64_t bytes) const;
  [[nodiscard]] std::optional<Range> highest_fit(std::uint64_t bytes) const;
  static constexpr int kMostLookedAt = 256;
  // The free range that holds or follows the byte `at`.
  [[nodiscard]] std::optional<Range> at_or_after(std::uint64_t at) const;

  // In the order of addresses: begin -> end.
  [[nodiscard]] const std::map<std::uint64_t, std::uint64_t>& ranges() const { return ends_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  using Iterator = std::map<std::uint64_t, std::uint64_t>::iterator;

  void insert(Range range);
  void erase(Iterator at);
  // Makes the range at `at` another one that lies between the same neighbours.
  void change(Iterator at, Range range);

  std::map<std::uint64_t, std::uint64_t> ends_;              // begin -> end
  std::set<std::pair<std::uint64_t, std::uint64_t>> sizes_;  // (bytes, begin)
  std::uint64_t bytes_ = 0;
};

}  // namespace stalloc::plan
