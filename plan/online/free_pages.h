// SPDX-License-Identifier: Apache-2.0
// A bitmap of the pages that are wholly free, for finding out quickly that a request does not fit.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "plan/placement/range.h"
#include "plan/placement/sparse_array.h"

namespace stalloc::plan {

// Bytes are physical offsets; a page has a power of two of them. No page is free at first. Pure; not thread-safe.
class FreePages {
 public:
  // For offsets up to `bytes`. Throws std::bad_alloc.
  FreePages(std::uint64_t bytes, std::uint64_t page)
      : shift_(std::countr_zero(page)), words_((bytes >> shift_) / kBits + 1) {}

  void take(Range range) noexcept { change(range.begin >> shift_, ((range.end - 1) >> shift_) + 1, false); }
  // `range` was freed, and `around` is the maximal free range that it is part of now.
  void give(Range range, Range around) noexcept {
    const std::uint64_t inside = (std::uint64_t{1} << shift_) - 1;
    const std::uint64_t first = std::max(range.begin >> shift_, (around.begin + inside) >> shift_);
    const std::uint64_t end = std::min((range.end + inside) >> shift_, around.end >> shift_);
    if (first < end) change(first, end, true);
  }

  // Whether the pages of a range, which begins and ends with pages, are all free.
  [[nodiscard]] bool holds(Range range) const noexcept {
    std::uint64_t first = range.begin >> shift_;
    const std::uint64_t end = range.end >> shift_;
    while (first < end) {
      const std::uint64_t count = std::min(end - first, kBits - first % kBits);
      const std::uint64_t bits = bits_of(first, count);
      if ((words_[first / kBits] & bits) != bits) return false;
      first += count;
    }
    return true;
  }

  // Some pages that were in use when pieces were searched in vain. As long as they are, the pieces have no longer
  // stretch of free pages than `longest`, so another search is not needed.
  struct Obstacles {
    // With 3, 6, 10 or 16, requests of two programs take as many instructions within 2 %, and those of random sizes
    // within 7 %, the fewest with 10 (tests/bench/counted_work.cpp).
    static constexpr std::size_t kMost = 4;
    std::uint64_t longest = ~std::uint64_t{0};  // pages
    std::size_t count = 0;
    std::array<std::uint64_t, kMost> pages{};
  };
  // False only if the pieces, which consist of whole pages and follow one another, have no free stretch of `bytes`.
  // `shown` is the sum of the pieces' bytes. `known`: what this function noted about the same pieces before.
  [[nodiscard]] bool may_hold(std::span<const Range> pieces, std::uint64_t shown, std::uint64_t bytes,
                              Obstacles* known) const noexcept;

 private:
  static constexpr std::uint64_t kBits = 64;

  [[nodiscard]] bool is_free(std::uint64_t page) const noexcept {
    return (words_[page / kBits] >> page % kBits & 1) != 0;
  }
  // Whether the obstacles are in use and leave no stretch of more than `needed` pages.
  [[nodiscard]] bool block(const Obstacles& obstacles, std::uint64_t needed) const noexcept {
    return obstacles.longest <= needed &&
           std::none_of(obstacles.pages.begin(), obstacles.pages.begin() + obstacles.count,
                        [this](std::uint64_t page) { return is_free(page); });
  }

  // Pre: first < end.
  void change(std::uint64_t first, std::uint64_t end, bool free) noexcept {
    for (; first / kBits != (end - 1) / kBits; first += kBits - first % kBits)
      change_word(first, kBits - first % kBits, free);
    change_word(first, end - first, free);
  }
  // The bits of `count` pages in the word of the first one. Pre: all of them are in that word, and count > 0.
  [[nodiscard]] static std::uint64_t bits_of(std::uint64_t first, std::uint64_t count) noexcept {
    return (~std::uint64_t{0} >> (kBits - count)) << first % kBits;
  }
  void change_word(std::uint64_t first, std::uint64_t count, bool free) noexcept {
    const std::uint64_t bits = bits_of(first, count);
    std::uint64_t& word = words_[first / kBits];
    word = free ? word | bits : word & ~bits;
  }

  int shift_;
  SparseArray<std::uint64_t> words_;
};

}  // namespace stalloc::plan
