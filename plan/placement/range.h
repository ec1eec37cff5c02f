// SPDX-License-Identifier: Apache-2.0
// Ranges of bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "plan/placement/units.h"

namespace stalloc::plan {

// Half-open [begin, end), in bytes.
struct Range {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  [[nodiscard]] std::uint64_t bytes() const { return end - begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

// Appends `range` unless it is empty, and joins it with the last one if they touch.
inline void append(std::vector<Range>& ranges, Range range) {
  if (range.begin == range.end) return;
  if (!ranges.empty() && ranges.back().end == range.begin) {
    ranges.back().end = range.end;
  } else {
    ranges.push_back(range);
  }
}

// The largest part of a range that begins and ends at multiples of `step`; empty if there is none.
inline Range within(Range range, std::uint64_t step) {
  range.begin = round_up(range.begin, step);
  range.end = std::max(range.begin, range.end / step * step);
  return range;
}

}  // namespace stalloc::plan
