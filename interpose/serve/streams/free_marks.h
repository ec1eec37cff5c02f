// SPDX-License-Identifier: Apache-2.0
// Who last freed which bytes.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "interpose/serve/physical.h"
#include "plan/placement/units.h"

namespace stalloc::serve {

// A stream's number in one heap. 0: no stream has a claim on the bytes.
using StreamOrdinal = std::uint8_t;
inline constexpr StreamOrdinal kNoStream = 0;
inline constexpr StreamOrdinal kMaxStreams = 200;
// Who freed bytes: a stream's ordinal, or one of the numbers that shared_frees.h gives a meaning.
using FreeMark = StreamOrdinal;
inline constexpr FreeMark kLastMark = 254;

// For each page the mark of those who freed bytes of it, or "mixed": then a mark for each unit says who. Units are
// marked only in pages that bear two marks, so that a large range costs a byte for each page. A mark may claim a byte
// that its stream did not free last, when no other stream did.
//
// A page also keeps the sequence number of its latest free and, since neighbours share a page at their ends, the latest
// few frees of parts of it. So the number of the free whose bytes are asked for is known exactly, unless more parts of
// that page have been freed since; then a larger number is told, as a bound. Not thread-safe: the heap's lock covers
// it.
class FreeMarks {
 public:
  // As for Occupancy. Throws std::bad_alloc.
  FreeMarks(std::uint64_t bytes, std::uint64_t page_bytes);

  // The ranges were freed by those that `mark` stands for; the free has number `sequence`, not smaller than any before.
  // `exact`: its number must be told exactly, which costs a little where pages are freed in part.
  void mark(PhysicalRanges ranges, FreeMark mark, std::uint64_t sequence, bool exact = true) noexcept;
  // The ranges were freed and no work on the device touches them any more.
  void clear(PhysicalRanges ranges) noexcept;

  // True when the ranges bear no mark but `mark`. The common case, and fast.
  [[nodiscard]] bool has_only(PhysicalRanges ranges, FreeMark mark) const noexcept;

  // A free: the greatest number that one of some bytes may have, and whether one of them has it.
  struct Latest {
    std::uint64_t sequence = 0;  // 0: none was freed
    bool exact = true;
  };
  // Calls `claim(mark, latest)` for the marks other than `own`, mostly once for each of them, with their latest free on
  // these bytes.
  template <class Claim>
  void for_each_claim(PhysicalRanges ranges, FreeMark own, Claim claim) const {
    LatestClaims latest;
    visit_claims(ranges, own, [&](FreeMark mark, Latest free) {
      if (free.sequence > 0 && !latest.note(mark, free)) claim(mark, free);
    });
    for (std::size_t i = 0; i < latest.count; ++i) claim(latest.claims[i].mark, latest.claims[i].free);
  }

 private:
  // Those of a few marks: bytes hardly ever bear more.
  struct LatestClaims {
    struct Claim {
      FreeMark mark;
      Latest free;
    };
    // False: it has no place.
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
    std::size_t latest = 0;             // the claim that was noted last
    std::array<Claim, kMost> claims{};  // [0, count); the others bear no mark
  };

  // Calls `claim` for each run of pages or units with one mark.
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
  // The first place behind `at` that bears another mark; `last` when none does.
  [[nodiscard]] static std::uint64_t end_of_run(const LazyTable<FreeMark>& marks, std::uint64_t at,
                                                std::uint64_t last) noexcept;
  void mark_part(std::uint64_t page, std::uint64_t begin, std::uint64_t end, FreeMark mark) noexcept;

  // The latest frees of parts of a page, the earliest first; none of them lies within a later one.
  struct Parts {
    // Neighbours of a large block share its first and last page. In pages of small blocks more parts are freed: with
    // seven, a plan of small blocks on several streams had 20 of 966 slots refused.
    static constexpr std::size_t kMost = 15;
    struct Part {
      std::uint64_t sequence;
      std::uint32_t begin, end;  // units of the page
    };
    void add(Part part) noexcept;

    Latest others;  // of the bytes that lie in none of the parts
    std::uint32_t count = 0;
    std::array<Part, kMost> parts;
  };
  // What is known of the parts of a page: there are none, or their latest frees are in `parts_`, or it is only known
  // that the page's latest free is a bound for all of them.
  enum class PartsKnown : std::uint8_t { None, Latest, Bound };
  void note_part(std::uint64_t page, std::uint64_t begin, std::uint64_t end, std::uint64_t sequence) noexcept;
  // Of some units of a page, all of which were freed last with the same mark.
  [[nodiscard]] Latest latest_free(std::uint64_t page, std::uint64_t begin, std::uint64_t end) const noexcept;

  unsigned shift_;
  LazyTable<FreeMark> marks_;           // by page
  LazyTable<std::uint64_t> sequences_;  // by page: of the latest free
  LazyTable<PartsKnown> parts_known_;   // by page: of the parts that have been freed since all of it was
  LazyTable<std::uint32_t> parts_of_;   // by page: the number of its parts in `parts_`, from 1 on; 0: it has none yet
  std::vector<Parts> parts_;            // few pages are ever freed in part
  LazyTable<FreeMark> unit_marks_;      // by unit, in mixed pages
};

}  // namespace stalloc::serve
