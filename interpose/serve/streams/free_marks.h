// SPDX-License-Identifier: Apache-2.0
// Which stream freed which bytes last.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "interpose/serve/physical.h"
#include "plan/placement/units.h"

namespace stalloc::serve {

// The number of a stream in one heap, from 1 to kMaxStreams. Where bytes are marked, kNoStream means that no stream may
// still use them; where bytes are requested, that every stream may use them at once (plan::kAnyStream).
using StreamOrdinal = std::uint8_t;
inline constexpr StreamOrdinal kNoStream = 0;
inline constexpr StreamOrdinal kMaxStreams = 200;
// Which stream freed bytes: an ordinal, or one of the larger numbers that shared_frees.h defines.
using FreeMark = StreamOrdinal;
inline constexpr FreeMark kLastMark = 254;

// Each page has the mark of the stream that freed its bytes last, or the mark "mixed"; then each unit of the page has a
// mark of its own. Units are marked only in pages with several marks, so a large range costs one byte for each page. A
// byte that no stream has freed may bear the mark of a stream that freed other bytes of the same page.
//
// A page also has the sequence number of its latest free. Since neighbouring blocks share a page at their ends, the
// latest few frees of parts of a page are kept too. So the number of the free of given bytes is known exactly, unless
// many parts of the page have been freed since; then a larger number is returned, as an upper bound.
//
// Not thread-safe: the heap's lock protects it. Only the constructor throws.
class FreeMarks {
 public:
  // Marks for physical offsets [0, bytes), in pages of `page_bytes` bytes, which is a power of two and at least
  // plan::kUnitBytes. Throws std::bad_alloc.
  FreeMarks(std::uint64_t bytes, std::uint64_t page_bytes);

  // The ranges were freed by the streams that `mark` stands for, with the number `sequence`, which is not smaller than
  // any number before. `exact`: the number must be known exactly later, which costs a little for partly freed pages.
  void mark(PhysicalRanges ranges, FreeMark mark, std::uint64_t sequence, bool exact = true) noexcept;
  // The ranges were freed, and no work on the device uses them any more.
  void clear(PhysicalRanges ranges) noexcept;

  // True if the ranges bear no other mark than `mark`. This is the common case, and it is fast.
  [[nodiscard]] bool has_only(PhysicalRanges ranges, FreeMark mark) const noexcept;

  // The latest free of some bytes: no free of theirs has a greater number than `sequence`. `exact`: one of them has
  // exactly this number.
  struct Latest {
    std::uint64_t sequence = 0;  // 0: they were never freed
    bool exact = true;
  };
  // Calls `claim(mark, latest)` for the marks other than `own` on these ranges, with the latest free by each mark. It
  // is called once for each mark, except when the ranges bear many marks.
  template <class Claim>
  void for_each_claim(PhysicalRanges ranges, FreeMark own, Claim claim) const {
    LatestClaims latest;
    visit_claims(ranges, own, [&](FreeMark mark, Latest free) {
      if (free.sequence > 0 && !latest.note(mark, free)) claim(mark, free);
    });
    for (std::size_t i = 0; i < latest.count; ++i) claim(latest.claims[i].mark, latest.claims[i].free);
  }

 private:
  // The latest free by each of a few marks. A range hardly ever bears more.
  struct LatestClaims {
    struct Claim {
      FreeMark mark;
      Latest free;
    };
    // False: there is no place for another mark.
    bool note(FreeMark mark, Latest free) noexcept {
      if (claims[latest].mark != mark) {
        for (latest = 0; latest < count && claims[latest].mark != mark;) ++latest;
        if (latest == kMost) {
          latest = 0;
          return false;
        }
        if (latest == count) claims[count++] = {mark, {}};
      }
      Latest& known = claims[latest].free;
      if (free.sequence > known.sequence) {
        known = free;
      } else if (free.sequence == known.sequence) {
        known.exact = known.exact || free.exact;
      }
      return true;
    }
    static constexpr std::size_t kMost = 8;
    std::size_t count = 0;
    std::size_t latest = 0;             // index of the claim that was noted last
    std::array<Claim, kMost> claims{};  // [0, count) are valid; the others have no mark
  };

  // Calls `claim(mark, latest)` for each run of pages or units with the same mark, other than `own`.
  template <class Claim>
  void visit_claims(PhysicalRanges ranges, FreeMark own, Claim claim) const {
    for (const PhysicalRange& range : ranges) {
      const auto page_claims = [&](std::uint64_t first, std::uint64_t last) {  // whole pages with one mark
        const FreeMark mark = marks_[first];
        const std::uint64_t* const sequences = &sequences_[first];
        if (mark != kNoStream && mark != own) {
          claim(mark, Latest{*std::max_element(sequences, sequences + (last - first)), true});
        }
      };
      const auto unit_claims = [&](std::uint64_t page, std::uint64_t first, std::uint64_t last) {
        for (std::uint64_t unit = first; unit < last;) {
          const FreeMark mark = unit_marks_[unit];
          const std::uint64_t end = end_of_run(unit_marks_, unit, last);
          if (mark != kNoStream && mark != own) {
            const std::uint64_t zero = first_unit(page, 0);
            claim(mark, latest_free(page, unit - zero, end - zero));
          }
          unit = end;
        }
      };
      for_each_block(
          range, shift_,
          [&](std::uint64_t first, std::uint64_t last) {
            for (std::uint64_t page = first; page < last;) {
              const bool mixed = marks_[page] == kMixed;
              const std::uint64_t end = mixed ? page + 1 : end_of_run(marks_, page, last);
              if (mixed) {
                unit_claims(page, first_unit(page, 0), first_unit(end, 0));
              } else {
                page_claims(page, end);
              }
              page = end;
            }
          },
          [&](std::uint64_t page, std::uint64_t begin, std::uint64_t end) {
            const FreeMark mark = marks_[page];
            if (mark == kMixed) {
              unit_claims(page, first_unit(page, begin), first_unit(page, end));
            } else if (mark != kNoStream && mark != own) {
              claim(mark, latest_free(page, begin / plan::kUnitBytes, end / plan::kUnitBytes));
            }
          });
    }
  }

  static constexpr FreeMark kMixed = 255;
  static_assert(kLastMark < kMixed);

  [[nodiscard]] std::uint64_t first_unit(std::uint64_t page, std::uint64_t offset) const noexcept;
  // The first index after `at` that bears another mark; `last` if none does.
  [[nodiscard]] static std::uint64_t end_of_run(const SparseArray<FreeMark>& marks, std::uint64_t at,
                                                std::uint64_t last) noexcept;
  void mark_part(std::uint64_t page, std::uint64_t begin, std::uint64_t end, FreeMark mark) noexcept;

  // The latest frees of parts of a page, the earliest first. No part lies within a later one.
  struct Parts {
    // The neighbours of a large block share its first and last page. In pages of small blocks, more parts are freed:
    // with only seven, 20 of 966 slots were refused in a plan of small blocks on several streams.
    static constexpr std::size_t kMost = 15;
    struct Part {
      std::uint64_t sequence;
      std::uint32_t begin, end;  // units of the page
    };
    void add(Part part) noexcept;

    Latest others;  // the latest free of the bytes outside the parts
    std::uint32_t count = 0;
    std::array<Part, kMost> parts;
  };
  // What is known about the parts of a page. None: it has no parts. Latest: their latest frees are in `parts_`. Bound:
  // the number of the page's latest free is an upper bound for all of them.
  enum class PartsKnown : std::uint8_t { None, Latest, Bound };
  void note_part(std::uint64_t page, std::uint64_t begin, std::uint64_t end, std::uint64_t sequence) noexcept;
  // The latest free of units [begin, end) of a page. Pre: they bear the same mark.
  [[nodiscard]] Latest latest_free(std::uint64_t page, std::uint64_t begin, std::uint64_t end) const noexcept;

  unsigned shift_;
  SparseArray<FreeMark> marks_;           // by page
  SparseArray<std::uint64_t> sequences_;  // by page: the number of its latest free
  SparseArray<PartsKnown> parts_known_;   // by page: about the parts freed since the whole page was freed
  SparseArray<std::uint32_t> parts_of_;   // by page: 1 + the index of its parts in `parts_`; 0: it has none yet
  std::vector<Parts> parts_;              // only few pages are ever freed in part
  SparseArray<FreeMark> unit_marks_;      // by unit; valid in mixed pages only
};

}  // namespace stalloc::serve
