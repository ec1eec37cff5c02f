// SPDX-License-Identifier: Apache-2.0
// Physical offsets name the bytes of a heap's physical memory: the plan's handles lie one behind the other from 0 on,
// in home order, and those of the dynamic sub-allocator behind them. Where a handle ends another may begin, or nothing.
#pragma once

#include <cstdint>
#include <span>

#include "plan/placement/range.h"
#include "plan/placement/sparse_array.h"

namespace stalloc::serve {

// Physical offsets. Both ends are multiples of plan::kUnitBytes.
using PhysicalRange = plan::Range;
using PhysicalRanges = std::span<const PhysicalRange>;

using plan::SparseArray;

// Cuts `range` at multiples of a block of 2^shift bytes: calls `whole(first, last)` for the blocks [first, last) that
// it covers entirely and `part(block, begin, end)`, with byte offsets into the block, for the at most two it covers in
// part.
template <class Whole, class Part>
void for_each_block(PhysicalRange range, unsigned shift, Whole whole, Part part) {
  const std::uint64_t block_bytes = std::uint64_t{1} << shift;
  const std::uint64_t mask = block_bytes - 1;
  std::uint64_t first = range.begin >> shift;
  const std::uint64_t last = range.end >> shift;  // the block behind the last whole one
  if (first == last) {
    if (range.begin < range.end) part(first, range.begin & mask, range.end & mask);
    return;
  }
  if ((range.begin & mask) != 0) {
    part(first, range.begin & mask, block_bytes);
    ++first;
  }
  if (first < last) whole(first, last);
  if ((range.end & mask) != 0) part(last, 0, range.end & mask);
}

}  // namespace stalloc::serve
