// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/streams/free_marks.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

#include "plan/placement/units.h"

namespace stalloc::serve {
namespace {

// This loop has no early exit, so that the compiler vectorises it.
bool any_foreign(const FreeMark* mark, const FreeMark* end, FreeMark own) noexcept {
  FreeMark foreign = 0;
  for (; mark != end; ++mark) foreign |= static_cast<FreeMark>((*mark != kNoStream) & (*mark != own));
  return foreign != 0;
}

// The same.
bool any_greater(const FreeMark* mark, const FreeMark* end, FreeMark than) noexcept {
  FreeMark greatest = 0;
  for (; mark != end; ++mark) greatest = std::max(greatest, *mark);
  return greatest > than;
}

}  // namespace

FreeMarks::FreeMarks(std::uint64_t bytes, std::uint64_t page_bytes)
    : shift_(static_cast<unsigned>(std::countr_zero(page_bytes))),
      marks_(bytes >> shift_),
      sequences_(bytes >> shift_),
      known_(bytes >> shift_),
      runs_of_(bytes >> shift_) {}

std::uint32_t FreeMarks::unit(std::uint64_t bytes) noexcept {
  return static_cast<std::uint32_t>(bytes / plan::kUnitBytes);
}

std::uint64_t FreeMarks::end_of_stretch(std::uint64_t page, std::uint64_t last) const noexcept {
  const FreeMark mark = marks_[page];
  const std::uint64_t eight_marks = mark * 0x0101010101010101ULL;
  for (++page; page + 8 <= last; page += 8) {
    std::uint64_t next = 0;
    std::memcpy(&next, &marks_[page], sizeof next);
    if (next != eight_marks) break;
  }
  while (page < last && marks_[page] == mark) ++page;
  return page;
}

FreeRuns* FreeMarks::make_runs(std::uint64_t page) noexcept {
  if (known_[page] == Known::Runs) return &runs_[runs_of_[page] - 1];
  std::uint32_t& number = runs_of_[page];
  if (number == 0) {
    try {
      runs_.emplace_back();
      number = static_cast<std::uint32_t>(runs_.size());
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
  }
  FreeRuns& runs = runs_[number - 1];
  const bool exact = known_[page] == Known::OneFree;
  if (!runs.begin_with({.sequence = sequences_[page], .mark = marks_[page], .exact = exact})) return nullptr;
  known_[page] = Known::Runs;
  return &runs;
}

bool FreeMarks::mark_run(std::uint64_t page, std::uint64_t begin, std::uint64_t end, FreeMark mark,
                         std::uint64_t sequence, bool exact) noexcept {
  FreeRuns* const runs = make_runs(page);
  const FreeRun run{.sequence = sequence, .begin = unit(begin), .mark = mark, .exact = exact};
  if (runs == nullptr || !runs->assign(run, unit(end), unit(std::uint64_t{1} << shift_))) return false;
  marks_[page] = runs->common_mark();
  return true;
}

void FreeMarks::mark(PhysicalRanges ranges, FreeMark mark, std::uint64_t sequence, bool exact) noexcept {
  for (const PhysicalRange& range : ranges) {
    for_each_block(
        range, shift_,
        [&](std::uint64_t first, std::uint64_t last) {
          std::fill(&marks_[first], &marks_[last], mark);
          std::fill(&sequences_[first], &sequences_[last], sequence);
          std::fill(&known_[first], &known_[last], exact ? Known::OneFree : Known::LatestFree);
        },
        [&](std::uint64_t page, std::uint64_t begin, std::uint64_t end) {
          // A page without a mark gets the mark as a whole, so programs with one stream never have runs.
          const bool is_alike = marks_[page] == kNoStream || marks_[page] == mark;
          const bool needs_runs = exact || keeps_parts_ || !is_alike || known_[page] == Known::Runs;
          if (!needs_runs || !mark_run(page, begin, end, mark, sequence, exact)) {
            marks_[page] = is_alike ? mark : kEveryStreamMark;
            known_[page] = Known::LatestFree;
          }
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
          std::fill(&known_[first], &known_[last], Known::OneFree);
        },
        [&](std::uint64_t page, std::uint64_t begin, std::uint64_t end) {
          // Without host memory the bytes keep their marks, which are then too many.
          if (marks_[page] != kNoStream) (void)mark_run(page, begin, end, kNoStream, 0, true);
        });
  }
}

bool FreeMarks::may_exceed(PhysicalRanges ranges, FreeMark mark) const noexcept {
  const std::uint64_t page_mask = (std::uint64_t{1} << shift_) - 1;
  return std::any_of(ranges.begin(), ranges.end(), [&](const PhysicalRange& range) {
    return any_greater(&marks_[range.begin >> shift_], &marks_[(range.end + page_mask) >> shift_], mark);
  });
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
          if (!only || marks_[page] == kNoStream || marks_[page] == mark) return;
          only = known_[page] == Known::Runs;
          if (!only) return;
          runs_in(page).visit(unit(begin), unit(end),
                              [&](const FreeRun& run) { only = only && (run.mark == kNoStream || run.mark == mark); });
        });
  }
  return only;
}

}  // namespace stalloc::serve
