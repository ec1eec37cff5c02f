// SPDX-License-Identifier: Apache-2.0
// Which stream last freed which bytes.
#pragma once

#include <cstdint>

#include "interpose/serve/physical.h"

namespace stalloc::serve {

// A stream's number in one heap. 0: no stream has a claim on the bytes.
using StreamOrdinal = std::uint8_t;
inline constexpr StreamOrdinal kNoStream = 0;
inline constexpr StreamOrdinal kMaxStreams = 250;

// For each page the one stream that freed bytes of it, or "mixed": then a mark for each unit says which. Units are
// marked only in pages that two streams share, so that a large range costs a byte for each page. A page also keeps the
// sequence number of its latest free. Both err on the safe side: a mark may claim a byte that its stream did not free
// last when no other stream did, and the sequence number may be that of another byte's later free. Not thread-safe: the
// heap's lock covers it.
class FreeMarks {
 public:
  // As for Occupancy. Throws std::bad_alloc.
  FreeMarks(std::uint64_t bytes, std::uint64_t page_bytes);

  // The ranges were freed on `stream`; the free has number `sequence`, greater than any before.
  void freed(PhysicalRanges ranges, StreamOrdinal stream, std::uint64_t sequence) noexcept;
  // The ranges were freed and no work on the device touches them any more.
  void cleared(PhysicalRanges ranges) noexcept;

  // True when no stream but `stream` has a claim on the ranges. The common case, and fast.
  [[nodiscard]] bool only(PhysicalRanges ranges, StreamOrdinal stream) const noexcept;

  // Calls `claim(stream, sequence)` for the claims of other streams than `stream`: at least once for each of them, with
  // the greatest number that a free of theirs on these bytes may have.
  template <class Claim>
  void for_each_claim(PhysicalRanges ranges, StreamOrdinal stream, Claim claim) const {
    for (const PhysicalRange& range : ranges) {
      const auto page_claim = [&](std::uint64_t page) {
        if (marks_[page] != kNoStream && marks_[page] != stream) claim(marks_[page], sequences_[page]);
      };
      const auto unit_claims = [&](std::uint64_t page, std::uint64_t first, std::uint64_t last) {
        for (std::uint64_t unit = first; unit < last;) {
          const StreamOrdinal mark = unit_marks_[unit];
          if (mark != kNoStream && mark != stream) claim(mark, sequences_[page]);
          unit = end_of_run(unit, last);
        }
      };
      for_each_block(
          range, shift_,
          [&](std::uint64_t first, std::uint64_t last) {
            for (std::uint64_t page = first; page < last; ++page) {
              if (marks_[page] == kMixed) {
                unit_claims(page, first_unit(page, 0), first_unit(page + 1, 0));
              } else {
                page_claim(page);
              }
            }
          },
          [&](std::uint64_t page, std::uint64_t begin, std::uint64_t end) {
            if (marks_[page] == kMixed) {
              unit_claims(page, first_unit(page, begin), first_unit(page, end));
            } else {
              page_claim(page);
            }
          });
    }
  }

 private:
  static constexpr StreamOrdinal kMixed = 255;

  [[nodiscard]] std::uint64_t first_unit(std::uint64_t page, std::uint64_t offset) const noexcept;
  // The first unit behind `unit` that bears another mark; `last` when none does.
  [[nodiscard]] std::uint64_t end_of_run(std::uint64_t unit, std::uint64_t last) const noexcept;
  void mark_part(std::uint64_t page, std::uint64_t begin, std::uint64_t end, StreamOrdinal stream) noexcept;

  unsigned shift_;
  LazyTable<StreamOrdinal> marks_;       // by page
  LazyTable<std::uint64_t> sequences_;   // by page
  LazyTable<StreamOrdinal> unit_marks_;  // by unit; counts in mixed pages only
};

}  // namespace stalloc::serve
