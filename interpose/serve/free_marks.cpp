#include "interpose/serve/free_marks.h"

#include <algorithm>
#include <bit>

#include "plan/plan.h"

namespace stalloc::serve {

FreeMarks::FreeMarks(std::uint64_t bytes, std::uint64_t page_bytes)
    : shift_(static_cast<unsigned>(std::countr_zero(page_bytes))),
      marks_(bytes >> shift_),
      sequences_(bytes >> shift_),
      unit_marks_(bytes / plan::kUnitBytes) {}

std::uint64_t FreeMarks::first_unit(std::uint64_t page, std::uint64_t offset) const noexcept {
  return ((page << shift_) + offset) / plan::kUnitBytes;
}

void FreeMarks::mark_part(std::uint64_t page, std::uint64_t begin, std::uint64_t end, StreamOrdinal stream) noexcept {
  const StreamOrdinal mark = marks_[page];
  if (mark == stream) return;
  if (mark != kMixed) {
    std::fill(&unit_marks_[first_unit(page, 0)], &unit_marks_[first_unit(page + 1, 0)], mark);
    marks_[page] = kMixed;
  }
  std::fill(&unit_marks_[first_unit(page, begin)], &unit_marks_[first_unit(page, end)], stream);
}

void FreeMarks::freed(PhysicalRanges ranges, StreamOrdinal stream, std::uint64_t sequence) noexcept {
  for (const PhysicalRange& range : ranges) {
    for_each_page(
        range, shift_,
        [&](std::uint64_t first, std::uint64_t last) {
          std::fill(&marks_[first], &marks_[last], stream);
          std::fill(&sequences_[first], &sequences_[last], sequence);
        },
        [&](std::uint64_t page, std::uint64_t begin, std::uint64_t end) {
          // A page that nobody claims becomes the stream's as a whole: programs with one stream never mark units.
          if (marks_[page] == kNoStream) marks_[page] = stream;
          mark_part(page, begin, end, stream);
          sequences_[page] = sequence;
        });
  }
}

void FreeMarks::cleared(PhysicalRanges ranges) noexcept {
  for (const PhysicalRange& range : ranges) {
    for_each_page(
        range, shift_,
        [&](std::uint64_t first, std::uint64_t last) { std::fill(&marks_[first], &marks_[last], kNoStream); },
        [&](std::uint64_t page, std::uint64_t begin, std::uint64_t end) { mark_part(page, begin, end, kNoStream); });
  }
}

bool FreeMarks::only(PhysicalRanges ranges, StreamOrdinal stream) const noexcept {
  bool only = true;
  for (const PhysicalRange& range : ranges) {
    for_each_page(
        range, shift_,
        [&](std::uint64_t first, std::uint64_t last) {
          bool foreign = false;
          for (std::uint64_t page = first; page < last; ++page) {
            foreign |= (marks_[page] != kNoStream) & (marks_[page] != stream);
          }
          only &= !foreign;
        },
        [&](std::uint64_t page, std::uint64_t begin, std::uint64_t end) {
          const StreamOrdinal mark = marks_[page];
          if (mark == kNoStream || mark == stream) return;
          if (mark != kMixed) {
            only = false;
            return;
          }
          for (std::uint64_t unit = first_unit(page, begin); unit < first_unit(page, end); ++unit) {
            only &= (unit_marks_[unit] == kNoStream) | (unit_marks_[unit] == stream);
          }
        });
  }
  return only;
}

}  // namespace stalloc::serve
