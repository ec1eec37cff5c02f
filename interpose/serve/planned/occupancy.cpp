// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/planned/occupancy.h"

#include <algorithm>
#include <bit>

#include "plan/plan.h"

namespace stalloc::serve {
namespace {

constexpr unsigned kUnitShift = std::countr_zero(plan::kUnitBytes);

constexpr unsigned kWordShift = kUnitShift + 6;  // log2 of the bytes for which one word has the bits

// The bits for the bytes [begin, end) of the block of one word. Pre: these are not all bytes of the block.
std::uint64_t bits_of(std::uint64_t begin, std::uint64_t end) noexcept {
  return ((std::uint64_t{1} << ((end - begin) >> kUnitShift)) - 1) << (begin >> kUnitShift);
}

}  // namespace

Occupancy::Occupancy(std::uint64_t bytes, std::uint64_t page_bytes)
    : shift_(static_cast<unsigned>(std::countr_zero(page_bytes))),
      pages_(bytes >> shift_),
      units_per_page_(static_cast<std::uint32_t>(page_bytes >> kUnitShift)),
      used_(bytes >> shift_),
      bits_((bytes >> kUnitShift) / 64 + 1) {}

bool Occupancy::try_take(PhysicalRanges ranges) noexcept {
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    if (!is_free(ranges[i])) {
      release(ranges.first(i));
      return false;
    }
    take(ranges[i]);
  }
  return true;
}

void Occupancy::release(PhysicalRanges ranges) noexcept {
  for (const PhysicalRange& range : ranges) release(range);
}

bool Occupancy::is_free(PhysicalRange range) const noexcept {
  bool free = true;
  for_each_block(
      range, shift_,
      [&](std::uint64_t first, std::uint64_t last) {
        std::uint32_t any = 0;
        for (const std::uint32_t* used = &used_[first]; used != &used_[last]; ++used) any |= *used;
        free = free && any == 0;
      },
      [&](std::uint64_t page, std::uint64_t begin, std::uint64_t end) {
        if (used_[page] == 0 || !free) return;
        free = used_[page] != units_per_page_ && bits_are_clear(in_page(page, begin, end));
      });
  return free;
}

void Occupancy::append_free(std::vector<PhysicalRange>* out) const {
  for (std::uint64_t page = 0; page < pages_; ++page) {
    const PhysicalRange whole{page << shift_, (page + 1) << shift_};
    if (used_[page] == 0) plan::append(*out, whole);
    if (used_[page] == 0 || used_[page] == units_per_page_) continue;
    for (std::uint64_t at = whole.begin; at < whole.end; at += plan::kUnitBytes) {
      if (bits_are_clear({at, at + plan::kUnitBytes})) plan::append(*out, {at, at + plan::kUnitBytes});
    }
  }
}

bool Occupancy::bits_are_clear(PhysicalRange range) const noexcept {
  std::uint64_t any = 0;
  for_each_block(
      range, kWordShift,
      [&](std::uint64_t first, std::uint64_t last) {
        for (std::uint64_t word = first; word < last; ++word) any |= bits_[word];
      },
      [&](std::uint64_t word, std::uint64_t begin, std::uint64_t end) { any |= bits_[word] & bits_of(begin, end); });
  return any == 0;
}

void Occupancy::set_bits(PhysicalRange range, bool taken) noexcept {
  for_each_block(
      range, kWordShift,
      [&](std::uint64_t first, std::uint64_t last) {
        std::fill(&bits_[first], &bits_[last], taken ? ~std::uint64_t{0} : 0);
      },
      [&](std::uint64_t word, std::uint64_t begin, std::uint64_t end) {
        if (taken) {
          bits_[word] |= bits_of(begin, end);
        } else {
          bits_[word] &= ~bits_of(begin, end);
        }
      });
}

void Occupancy::take(PhysicalRange range) noexcept {
  for_each_block(
      range, shift_,
      [&](std::uint64_t first, std::uint64_t last) { std::fill(&used_[first], &used_[last], units_per_page_); },
      [&](std::uint64_t page, std::uint64_t begin, std::uint64_t end) {
        used_[page] += static_cast<std::uint32_t>((end - begin) >> kUnitShift);
        set_bits(in_page(page, begin, end), true);
      });
}

void Occupancy::release(PhysicalRange range) noexcept {
  for_each_block(
      range, shift_, [&](std::uint64_t first, std::uint64_t last) { std::fill(&used_[first], &used_[last], 0U); },
      [&](std::uint64_t page, std::uint64_t begin, std::uint64_t end) {
        used_[page] -= static_cast<std::uint32_t>((end - begin) >> kUnitShift);
        set_bits(in_page(page, begin, end), false);
      });
}

}  // namespace stalloc::serve
