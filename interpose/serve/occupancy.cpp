#include "interpose/serve/occupancy.h"

#include <algorithm>
#include <bit>

#include "plan/plan.h"

namespace stalloc::serve {
namespace {

constexpr unsigned kUnitShift = std::countr_zero(plan::kUnitBytes);

// Calls `visit(word index, mask)` for the words that hold units [begin, end); stops when it returns false.
template <class Visit>
bool for_each_word(std::uint64_t begin, std::uint64_t end, Visit visit) {
  while (begin < end) {
    const std::uint64_t word = begin / 64;
    const std::uint64_t stop = std::min(end, (word + 1) * 64);
    const std::uint64_t width = stop - begin;
    const std::uint64_t mask = (width == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << width) - 1) << (begin % 64);
    if (!visit(word, mask)) return false;
    begin = stop;
  }
  return true;
}

}  // namespace

Occupancy::Occupancy(std::uint64_t bytes, std::uint64_t page_bytes)
    : shift_(static_cast<unsigned>(std::countr_zero(page_bytes))),
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
  for_each_page(
      range, shift_,
      [&](std::uint64_t first, std::uint64_t last) {
        std::uint32_t any = 0;
        for (std::uint64_t page = first; page < last; ++page) any |= used_[page];
        free &= any == 0;
      },
      [&](std::uint64_t page, std::uint64_t begin, std::uint64_t end) {
        if (used_[page] == 0 || !free) return;
        const std::uint64_t base = page << shift_;
        free &= used_[page] != units_per_page_ &&
                for_each_word((base + begin) >> kUnitShift, (base + end) >> kUnitShift,
                              [&](std::uint64_t word, std::uint64_t mask) { return (bits_[word] & mask) == 0; });
      });
  return free;
}

void Occupancy::take(PhysicalRange range) noexcept {
  for_each_page(
      range, shift_,
      [&](std::uint64_t first, std::uint64_t last) { std::fill(&used_[first], &used_[last], units_per_page_); },
      [&](std::uint64_t page, std::uint64_t begin, std::uint64_t end) {
        const std::uint64_t base = page << shift_;
        used_[page] += static_cast<std::uint32_t>((end - begin) >> kUnitShift);
        for_each_word((base + begin) >> kUnitShift, (base + end) >> kUnitShift,
                      [&](std::uint64_t word, std::uint64_t mask) { return bits_[word] |= mask, true; });
      });
}

void Occupancy::release(PhysicalRange range) noexcept {
  for_each_page(
      range, shift_, [&](std::uint64_t first, std::uint64_t last) { std::fill(&used_[first], &used_[last], 0U); },
      [&](std::uint64_t page, std::uint64_t begin, std::uint64_t end) {
        const std::uint64_t base = page << shift_;
        used_[page] -= static_cast<std::uint32_t>((end - begin) >> kUnitShift);
        for_each_word((base + begin) >> kUnitShift, (base + end) >> kUnitShift,
                      [&](std::uint64_t word, std::uint64_t mask) { return bits_[word] &= ~mask, true; });
      });
}

}  // namespace stalloc::serve
