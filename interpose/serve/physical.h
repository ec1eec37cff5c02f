// Physical memory of an arena as one line of bytes: the plan's handles one behind the other, in home order.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>

namespace stalloc::serve {

// Half-open, in bytes; both ends are multiples of plan::kUnitBytes.
struct PhysicalRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  friend bool operator==(const PhysicalRange&, const PhysicalRange&) = default;
};

using PhysicalRanges = std::span<const PhysicalRange>;

// Zeroed memory that costs nothing until it is touched: the system gives it page by page. For tables with a cell for
// every unit of physical memory, most of which are never used. Throws std::bad_alloc.
template <class T>
class LazyTable {
 public:
  explicit LazyTable(std::uint64_t size) : cells_(static_cast<T*>(std::calloc(size + 1, sizeof(T)))) {
    if (!cells_) throw std::bad_alloc();
  }
  T& operator[](std::uint64_t index) noexcept { return cells_.get()[index]; }
  const T& operator[](std::uint64_t index) const noexcept { return cells_.get()[index]; }

 private:
  struct Free {
    void operator()(T* cells) const noexcept { std::free(cells); }
  };
  std::unique_ptr<T[], Free> cells_;
};

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
