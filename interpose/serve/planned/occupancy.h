// SPDX-License-Identifier: Apache-2.0
// Which physical bytes are taken. This keeps invariant 1: no physical byte is in two live ranges, through any view.
#pragma once

#include <cstdint>
#include <vector>

#include "interpose/serve/physical.h"

namespace stalloc::serve {

// It has two levels, like the bitmaps of many allocators: for every page the number of its units that are taken, and
// for every unit a bit, which is valid only in partly used pages. Taking 1 GiB marks 512 pages, and a small range marks
// a few words. Not thread-safe: the heap's lock protects it.
class Occupancy {
 public:
  // All bytes are free at first. `page_bytes` is a power of two and at least plan::kUnitBytes, and `bytes` is a
  // multiple of it. Throws std::bad_alloc.
  Occupancy(std::uint64_t bytes, std::uint64_t page_bytes);

  // Takes all of `ranges`. False, and nothing is taken, if any byte is taken already, or if the ranges overlap.
  [[nodiscard]] bool try_take(PhysicalRanges ranges) noexcept;
  // Makes ranges free. Pre: exactly these ranges were taken together.
  void release(PhysicalRanges ranges) noexcept;
  [[nodiscard]] bool is_free(PhysicalRange range) const noexcept;
  // Appends all free ranges, in order. Throws std::bad_alloc.
  void append_free(std::vector<PhysicalRange>* out) const;

 private:
  void take(PhysicalRange range) noexcept;
  void release(PhysicalRange range) noexcept;
  [[nodiscard]] bool bits_are_clear(PhysicalRange range) const noexcept;
  void set_bits(PhysicalRange range, bool taken) noexcept;
  // The physical offsets of the bytes [begin, end) of a page.
  [[nodiscard]] PhysicalRange in_page(std::uint64_t page, std::uint64_t begin, std::uint64_t end) const noexcept {
    return {(page << shift_) + begin, (page << shift_) + end};
  }

  unsigned shift_;
  std::uint64_t pages_;
  std::uint32_t units_per_page_;
  SparseArray<std::uint32_t> used_;  // by page: number of units that are taken
  SparseArray<std::uint64_t> bits_;  // a bit for each taken unit; all clear in a page that one range takes as a whole
};

}  // namespace stalloc::serve
