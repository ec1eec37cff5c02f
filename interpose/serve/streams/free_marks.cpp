// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/streams/free_marks.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "plan/placement/units.h"

namespace stalloc::serve {
namespace {

// No early exit, so that the compiler vectorises it.
bool any_foreign(const StreamOrdinal* mark, const StreamOrdinal* end, StreamOrdinal stream) noexcept {
  StreamOrdinal foreign = 0;
  for (; mark != end; ++mark) foreign |= static_cast<StreamOrdinal>((*mark != kNoStream) & (*mark != stream));
  return foreign != 0;
}

}  // namespace

FreeMarks::FreeMarks(std::uint64_t bytes, std::uint64_t page_bytes)
    : shift_(static_cast<unsigned>(std::countr_zero(page_bytes))),
      marks_(bytes >> shift_),
      sequences_(bytes >> shift_),
      unit_marks_(bytes / plan::kUnitBytes) {}

std::uint64_t FreeMarks::first_unit(std::uint64_t page, std::uint64_t offset) const noexcept {
  return ((page << shift_) + offset) / plan::kUnitBytes;
}

std::uint64_t FreeMarks::end_of_run(std::uint64_t unit, std::uint64_t last) const noexcept {
  const StreamOrdinal mark = unit_marks_[unit];
  const std::uint64_t eight_marks = mark * 0x0101010101010101ULL;
  for (++unit; unit + 8 <= last; unit += 8) {
    std::uint64_t marks = 0;
    std::memcpy(&marks, &unit_marks_[unit], sizeof marks);
    if (marks != eight_marks) break;
  }
  while (unit < last && unit_marks_[unit] == mark) ++unit;
  return unit;
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
    for_each_block(
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
    for_each_block(
        range, shift_,
        [&](std::uint64_t first, std::uint64_t last) { std::fill(&marks_[first], &marks_[last], kNoStream); },
        [&](std::uint64_t page, std::uint64_t begin, std::uint64_t end) { mark_part(page, begin, end, kNoStream); });
  }
}

bool FreeMarks::only(PhysicalRanges ranges, StreamOrdinal stream) const noexcept {
  bool only = true;
  for (const PhysicalRange& range : ranges) {
    for_each_block(
        range, shift_,
        [&](std::uint64_t first, std::uint64_t last) {
          only = only && !any_foreign(&marks_[first], &marks_[last], stream);
        },
        [&](std::uint64_t page, std::uint64_t begin, std::uint64_t end) {
          const StreamOrdinal mark = marks_[page];
          if (!only || mark == kNoStream || mark == stream) return;
          only = mark == kMixed &&
                 !any_foreign(&unit_marks_[first_unit(page, begin)], &unit_marks_[first_unit(page, end)], stream);
        });
  }
  return only;
}

}  // namespace stalloc::serve
