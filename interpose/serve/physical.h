// SPDX-License-Identifier: Apache-2.0
// Physical offsets number the bytes of a heap's physical memory. The plan's handles come first, from offset 0, one
// after another in the order of the home view; the handles of the dynamic sub-allocator follow, with gaps between them.
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

// Divides `range` into blocks of 2^shift bytes. Calls `whole(first, last)` for the blocks [first, last) that it covers
// entirely, and `part(block, begin, end)`, with byte offsets in the block, for the at most two blocks that it covers in
// part.
template <class Whole, class Part>
void for_each_block(PhysicalRange range, unsigned shift, Whole whole, Part part) {
  const std::uint64_t block_bytes = std::uint64_t{1} << shift;
  const std::uint64_t mask = block_bytes - 1;
  std::uint64_t first = range.begin >> shift;
  const std::uint64_t last = range.end >> shift;  // the block after the last whole one
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
