// SPDX-License-Identifier: Apache-2.0
// A set of free byte ranges with best-fit search.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "plan/placement/range.h"
#include "plan/placement/range_nodes.h"

namespace stalloc::plan {

// Maximal free ranges: no two touch. Every operation is O(log n) in the number of ranges, plus the number of ranges
// that it spans. Not thread-safe. `add` and `subtract` may throw std::bad_alloc.
class FreeSpace {
 public:
  // Makes all of `range` free, whichever parts were free before. Returns the free range of which it is then a part.
  Range add(Range range);
  // Removes all of `range`, whichever parts were free before.
  void subtract(Range range);
  // The next `add` or `subtract` does not throw. Throws std::bad_alloc, with nothing changed.
  void make_room() { nodes_.make_room(); }
  void clear();  // nothing is free

  // Whether all of `range` is free.
  [[nodiscard]] bool contains(Range range) const;
  // Appends the free parts of `range`.
  void intersect(Range range, std::vector<Range>& out) const;
  // The smallest free range of at least `bytes`; among equals the lowest.
  [[nodiscard]] std::optional<Range> best_fit(std::uint64_t bytes) const;
  // Writes the smallest free ranges of at least `bytes`, the smallest first, as many as `out` holds; returns how many.
  std::size_t fits(std::uint64_t bytes, std::span<Range> out) const;
  // The bytes of the largest free range; 0 if nothing is free.
  [[nodiscard]] std::uint64_t largest() const {
    return nodes_[nodes_.largest()].second - nodes_[nodes_.largest()].first;
  }
  // The first free range of at least `bytes` from the low or the high end. Examines only the first kMostLookedAt
  // ranges, so that the cost is bounded; nothing if none of them is large enough.
  [[nodiscard]] std::optional<Range> lowest_fit(std::uint64_t bytes) const;
  [[nodiscard]] std::optional<Range> highest_fit(std::uint64_t bytes) const;
  static constexpr int kMostLookedAt = 256;
  // The free ranges from the one that contains `at`, or is next after it, on.
  [[nodiscard]] RangeNodes::Iterator from(std::uint64_t at) const { return nodes_.iterator(ending_behind(at)); }

  // In the order of addresses, as pairs of begin and end.
  [[nodiscard]] const RangeNodes& ranges() const { return nodes_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }  // of all free ranges

 private:
  using Index = RangeNodes::Index;

  void erase(Index at);
  void change(Index at, Range range);
  // The first range with bytes at or after `at`; 0: none.
  [[nodiscard]] Index ending_behind(std::uint64_t at) const;

  RangeNodes nodes_;
  mutable Index found_ = 0;  // the last result of best_fit, where the next change mostly is
  std::uint64_t bytes_ = 0;
};

}  // namespace stalloc::plan
