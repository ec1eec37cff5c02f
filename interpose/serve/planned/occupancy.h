// SPDX-License-Identifier: Apache-2.0
// Which physical bytes are taken: invariant 1, no physical byte is in two live ranges, through any view.
#pragma once

#include <cstdint>
#include <vector>

#include "interpose/serve/physical.h"

namespace stalloc::serve {

// Two levels, after the page and block maps of general allocators: a count of used units for every page, and a bit for
// every unit that counts only in partly used pages. Taking 1 GiB marks 512 pages; a small range marks a few words.
// Not thread-safe: the heap's lock covers it.
class Occupancy {
 public:
  // `page_bytes` is a power of two and at least plan::kUnitBytes; `bytes` a multiple of it. Throws std::bad_alloc.
  Occupancy(std::uint64_t bytes, std::uint64_t page_bytes);

  // Takes all of `ranges`, or nothing when any byte is taken already (ranges that overlap each other included).
  [[nodiscard]] bool try_take(PhysicalRanges ranges) noexcept;
  // Pre: exactly these ranges were taken together and not released since.
  void release(PhysicalRanges ranges) noexcept;
  [[nodiscard]] bool is_free(PhysicalRange range) const noexcept;
  // All free ranges, in order. Throws std::bad_alloc.
  void append_free(std::vector<PhysicalRange>* out) const;

 private:
  void take(PhysicalRange range) noexcept;
  void release(PhysicalRange range) noexcept;
  [[nodiscard]] bool bits_are_clear(PhysicalRange range) const noexcept;
  void set_bits(PhysicalRange range, bool taken) noexcept;
  // Bytes [begin, end) of a page.
  [[nodiscard]] PhysicalRange in_page(std::uint64_t page, std::uint64_t begin, std::uint64_t end) const noexcept {
    return {(page << shift_) + begin, (page << shift_) + end};
  }

  unsigned shift_;
  std::uint64_t pages_;
  std::uint32_t units_per_page_;
  SparseArray<std::uint32_t> used_;  // units taken, by page
  SparseArray<std::uint64_t> bits_;  // unit taken, 64 to a word; all clear in a page taken whole by one range
};

}  // namespace stalloc::serve
