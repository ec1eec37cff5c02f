// SPDX-License-Identifier: Apache-2.0
// Who last freed which bytes.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "interpose/serve/physical.h"

namespace stalloc::serve {

// A stream's number in one heap. 0: no stream has a claim on the bytes.
using StreamOrdinal = std::uint8_t;
inline constexpr StreamOrdinal kNoStream = 0;
inline constexpr StreamOrdinal kMaxStreams = 200;
// Who freed bytes: a stream's ordinal, or one of the numbers that shared_frees.h gives a meaning.
using FreeMark = StreamOrdinal;
inline constexpr FreeMark kLastMark = 254;

// For each page the mark of those who freed bytes of it, or "mixed": then a mark for each unit says who. Units are
// marked only in pages that bear two marks, so that a large range costs a byte for each page. A page also keeps the
// sequence number of its latest free, and a mixed one that of the latest free with another mark than that. Both err on
// the safe side: a mark may claim a byte that its stream did not free last when no other stream did, and the sequence
// number may be that of another byte's later free. Not thread-safe: the heap's lock covers it.
class FreeMarks {
 public:
  // As for Occupancy. Throws std::bad_alloc.
  FreeMarks(std::uint64_t bytes, std::uint64_t page_bytes);

  // The ranges were freed by those that `mark` stands for; the free has number `sequence`, not smaller than any before.
  void freed(PhysicalRanges ranges, FreeMark mark, std::uint64_t sequence) noexcept;
  // The ranges were freed and no work on the device touches them any more.
  void cleared(PhysicalRanges ranges) noexcept;

  // True when the ranges bear no mark but `mark`. The common case, and fast.
  [[nodiscard]] bool only(PhysicalRanges ranges, FreeMark mark) const noexcept;

  // Calls `claim(mark, sequence)` for the marks other than `own`, mostly once for each of them, with the greatest
  // number that a free of theirs on these bytes may have.
  template <class Claim>
  void for_each_claim(PhysicalRanges ranges, FreeMark own, Claim claim) const {
    LatestClaims latest;
    visit_claims(ranges, own, [&](FreeMark mark, std::uint64_t sequence) {
      if (!latest.note(mark, sequence)) claim(mark, sequence);
    });
    for (std::size_t i = 0; i < latest.count; ++i) claim(latest.claims[i].mark, latest.claims[i].sequence);
  }

 private:
  // Those of a few marks: bytes hardly ever bear more.
  struct LatestClaims {
    struct Claim {
      FreeMark mark;
      std::uint64_t sequence;
    };
    // False: it has no place.
    bool note(FreeMark mark, std::uint64_t sequence) noexcept {
      if (claims[latest].mark != mark) {
        for (latest = 0; latest < count && claims[latest].mark != mark;) ++latest;
        if (latest == kMost) {
          latest = 0;
          return false;
        }
        if (latest == count) claims[count++] = {mark, 0};
      }
      claims[latest].sequence = std::max(claims[latest].sequence, sequence);
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
      const auto page_claims = [&](std::uint64_t first, std::uint64_t last) {  // pages with one mark
        const FreeMark mark = marks_[first];
        const std::uint64_t* const sequences = &sequences_[first];
        if (mark != kNoStream && mark != own) claim(mark, *std::max_element(sequences, sequences + (last - first)));
      };
      const auto unit_claims = [&](std::uint64_t page, std::uint64_t first, std::uint64_t last) {
        for (std::uint64_t unit = first; unit < last;) {
          const FreeMark mark = unit_marks_[unit];
          if (mark != kNoStream && mark != own) claim(mark, sequence_in_mixed(page, mark));
          unit = end_of_run(unit_marks_, unit, last);
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
            if (marks_[page] == kMixed) {
              unit_claims(page, first_unit(page, begin), first_unit(page, end));
            } else {
              page_claims(page, page + 1);
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
  [[nodiscard]] std::uint64_t sequence_in_mixed(std::uint64_t page, FreeMark mark) const noexcept {
    return latest_marks_[page] == mark ? sequences_[page] : other_sequences_[page];
  }

  unsigned shift_;
  LazyTable<FreeMark> marks_;           // by page
  LazyTable<std::uint64_t> sequences_;  // by page
  // These count in mixed pages only.
  LazyTable<FreeMark> latest_marks_;          // by page: of the latest free
  LazyTable<std::uint64_t> other_sequences_;  // by page: of the latest free with another mark
  LazyTable<FreeMark> unit_marks_;            // by unit
};

}  // namespace stalloc::serve
