// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/streams/free_marks.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

#include "plan/placement/units.h"

namespace stalloc::serve {
namespace {

// These loops have no early exit, so that the compiler vectorises them.
bool any_other(const FreeMark* marks, std::uint64_t count, FreeMark mark) noexcept {
  FreeMark other = 0;
  for (std::uint64_t i = 0; i < count; ++i) other |= static_cast<FreeMark>(marks[i] ^ mark);
  return other != 0;
}

bool any_foreign(const FreeMark* mark, const FreeMark* end, FreeMark own) noexcept {
  FreeMark foreign = 0;
  for (; mark != end; ++mark) foreign |= static_cast<FreeMark>((*mark != kNoStream) & (*mark != own));
  return foreign != 0;
}

}  // namespace

FreeMarks::FreeMarks(std::uint64_t bytes, std::uint64_t page_bytes)
    : shift_(static_cast<unsigned>(std::countr_zero(page_bytes))),
      marks_(bytes >> shift_),
      sequences_(bytes >> shift_),
      parts_known_(bytes >> shift_),
      parts_of_(bytes >> shift_),
      unit_marks_(bytes / plan::kUnitBytes) {}

std::uint64_t FreeMarks::first_unit(std::uint64_t page, std::uint64_t offset) const noexcept {
  return ((page << shift_) + offset) / plan::kUnitBytes;
}

std::uint64_t FreeMarks::end_of_run(const SparseArray<FreeMark>& marks, std::uint64_t at, std::uint64_t last) noexcept {
  const FreeMark mark = marks[at];
  constexpr std::uint64_t kAtOnce = 256;
  for (++at; at + kAtOnce <= last && !any_other(&marks[at], kAtOnce, mark);) at += kAtOnce;
  const std::uint64_t eight_marks = mark * 0x0101010101010101ULL;
  for (; at + 8 <= last; at += 8) {
    std::uint64_t next = 0;
    std::memcpy(&next, &marks[at], sizeof next);
    if (next != eight_marks) break;
  }
  while (at < last && marks[at] == mark) ++at;
  return at;
}

void FreeMarks::mark_part(std::uint64_t page, std::uint64_t begin, std::uint64_t end, FreeMark mark) noexcept {
  const FreeMark before = marks_[page];
  if (before == mark) return;
  if (before != kMixed) {
    std::fill(&unit_marks_[first_unit(page, 0)], &unit_marks_[first_unit(page + 1, 0)], before);
    marks_[page] = kMixed;
  }
  std::fill(&unit_marks_[first_unit(page, begin)], &unit_marks_[first_unit(page, end)], mark);
}

void FreeMarks::Parts::add(Part part) noexcept {
  std::uint32_t kept = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (parts[i].begin < part.begin || part.end < parts[i].end) parts[kept++] = parts[i];
  }
  count = kept;
  if (count == kMost) {
    others = {parts[0].sequence, false};
    std::copy(parts.begin() + 1, parts.end(), parts.begin());
    --count;
  }
  parts[count++] = part;
}

void FreeMarks::note_part(std::uint64_t page, std::uint64_t begin, std::uint64_t end, std::uint64_t sequence) noexcept {
  PartsKnown& known = parts_known_[page];
  std::uint32_t& number = parts_of_[page];
  if (number == 0) {
    try {
      parts_.emplace_back();
      number = static_cast<std::uint32_t>(parts_.size());
    } catch (const std::bad_alloc&) {
      known = PartsKnown::Bound;
      sequences_[page] = sequence;
      return;
    }
  }
  Parts& parts = parts_[number - 1];
  if (known != PartsKnown::Latest) {
    parts.others = {sequences_[page], known == PartsKnown::None};
    parts.count = 0;
    known = PartsKnown::Latest;
  }
  parts.add({sequence, static_cast<std::uint32_t>(begin / plan::kUnitBytes),
             static_cast<std::uint32_t>(end / plan::kUnitBytes)});
  sequences_[page] = sequence;
}

FreeMarks::Latest FreeMarks::latest_free(std::uint64_t page, std::uint64_t begin, std::uint64_t end) const noexcept {
  if (parts_known_[page] != PartsKnown::Latest) return {sequences_[page], parts_known_[page] == PartsKnown::None};
  const Parts& parts = parts_[parts_of_[page] - 1];
  for (std::uint32_t i = parts.count; i-- > 0;) {
    if (parts.parts[i].begin < end && begin < parts.parts[i].end) return {parts.parts[i].sequence, true};
  }
  return parts.others;
}

void FreeMarks::mark(PhysicalRanges ranges, FreeMark mark, std::uint64_t sequence, bool exact) noexcept {
  for (const PhysicalRange& range : ranges) {
    for_each_block(
        range, shift_,
        [&](std::uint64_t first, std::uint64_t last) {
          std::fill(&marks_[first], &marks_[last], mark);
          std::fill(&sequences_[first], &sequences_[last], sequence);
          std::fill(&parts_known_[first], &parts_known_[last], PartsKnown::None);
        },
        [&](std::uint64_t page, std::uint64_t begin, std::uint64_t end) {
          // A page without a mark gets the mark as a whole, so programs with one stream never mark units.
          if (marks_[page] == kNoStream) marks_[page] = mark;
          mark_part(page, begin, end, mark);
          if (exact) return note_part(page, begin, end, sequence);
          parts_known_[page] = PartsKnown::Bound;
          sequences_[page] = sequence;
        });
  }
}

void FreeMarks::clear(PhysicalRanges ranges) noexcept {
  for (const PhysicalRange& range : ranges) {
    for_each_block(
        range, shift_,
        [&](std::uint64_t first, std::uint64_t last) {
          std::fill(&marks_[first], &marks_[last], kNoStream);
          std::fill(&sequences_[first], &sequences_[last], 0);
          std::fill(&parts_known_[first], &parts_known_[last], PartsKnown::None);
        },
        [&](std::uint64_t page, std::uint64_t begin, std::uint64_t end) { mark_part(page, begin, end, kNoStream); });
  }
}

bool FreeMarks::has_only(PhysicalRanges ranges, FreeMark mark) const noexcept {
  bool only = true;
  for (const PhysicalRange& range : ranges) {
    for_each_block(
        range, shift_,
        [&](std::uint64_t first, std::uint64_t last) {
          only = only && !any_foreign(&marks_[first], &marks_[last], mark);
        },
        [&](std::uint64_t page, std::uint64_t begin, std::uint64_t end) {
          const FreeMark there = marks_[page];
          if (!only || there == kNoStream || there == mark) return;
          only = there == kMixed &&
                 !any_foreign(&unit_marks_[first_unit(page, begin)], &unit_marks_[first_unit(page, end)], mark);
        });
  }
  return only;
}

}  // namespace stalloc::serve
