// SPDX-License-Identifier: Apache-2.0
// The number of live bytes at each slot.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/placement/free_space.h"

namespace stalloc::plan {

// Live bytes over the slots: adds bytes to a stretch of slots and finds the maximum in a stretch, both in O(log n). It
// is a segment tree without lazy propagation: a node holds the maximum below it and the sum of what was added to its
// whole range.
class LiveBytes {
 public:
  explicit LiveBytes(std::size_t slots)
      : leaves_(std::bit_ceil(std::max<std::size_t>(slots, 1))), max_(2 * leaves_), added_(2 * leaves_) {}

  // Adds bytes to each slot of a stretch, which may be empty.
  void add(Range at, std::uint64_t bytes) {
    if (at.begin < at.end) add(1, 0, leaves_, at, bytes);
  }
  // The most live bytes in a stretch; 0 if it is empty.
  [[nodiscard]] std::uint64_t max_in(Range at) const { return at.begin < at.end ? max_in(1, 0, leaves_, at) : 0; }
  [[nodiscard]] std::uint64_t peak() const { return max_[1]; }

 private:
  void add(std::size_t node, std::size_t from, std::size_t to, Range at, std::uint64_t bytes) {
    if (at.end <= from || to <= at.begin) return;
    if (at.begin <= from && to <= at.end) {
      max_[node] += bytes;
      added_[node] += bytes;
      return;
    }
    const std::size_t middle = (from + to) / 2;
    add(2 * node, from, middle, at, bytes);
    add(2 * node + 1, middle, to, at, bytes);
    max_[node] = added_[node] + std::max(max_[2 * node], max_[2 * node + 1]);
  }

  [[nodiscard]] std::uint64_t max_in(std::size_t node, std::size_t from, std::size_t to, Range at) const {
    if (at.end <= from || to <= at.begin) return 0;
    if (at.begin <= from && to <= at.end) return max_[node];
    const std::size_t middle = (from + to) / 2;
    return added_[node] + std::max(max_in(2 * node, from, middle, at), max_in(2 * node + 1, middle, to, at));
  }

  std::size_t leaves_;
  std::vector<std::uint64_t> max_;
  std::vector<std::uint64_t> added_;
};

}  // namespace stalloc::plan
