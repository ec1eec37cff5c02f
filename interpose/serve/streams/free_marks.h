// SPDX-License-Identifier: Apache-2.0
// Which stream freed which bytes last.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "interpose/serve/physical.h"
#include "interpose/serve/streams/free_runs.h"

namespace stalloc::serve {

// Each page has the mark of the stream that freed its bytes last and the sequence number of its latest free, so a large
// range costs a few bytes for each page. A page whose parts were freed by several frees has runs (free_runs.h), with a
// mark and a number each: so the number of the free of given bytes is known exactly if it has an event. Otherwise, if
// many parts of the page have been freed since, a larger number is returned, as an upper bound. A byte that no stream
// has freed may bear the mark of a stream that freed other bytes of the same page.
//
// Not thread-safe: the heap's lock protects it. Only the constructor throws.
class FreeMarks {
 public:
  // Marks for physical offsets [0, bytes), in pages of `page_bytes` bytes, which is a power of two and at least
  // plan::kUnitBytes. Throws std::bad_alloc.
  FreeMarks(std::uint64_t bytes, std::uint64_t page_bytes);

  // The ranges were freed by the streams that `mark` stands for, with the number `sequence`, which is not smaller than
  // any number before. `exact`: the number must be known exactly later, since there is an event of this very free.
  void mark(PhysicalRanges ranges, FreeMark mark, std::uint64_t sequence, bool exact = true) noexcept;
  // From now on, frees of the parts of a page are kept apart, which costs a little. Before, a page that only one stream
  // has freed has one number.
  void keep_parts() noexcept { keeps_parts_ = true; }
  // The ranges were freed, and no work on the device uses them any more.
  void clear(PhysicalRanges ranges) noexcept;

  // True if the ranges bear no other mark than `mark`. This is the common case, and it is fast.
  [[nodiscard]] bool has_only(PhysicalRanges ranges, FreeMark mark) const noexcept;

  // False: no byte of the ranges bears a greater mark than `mark`. True: some may.
  [[nodiscard]] bool may_exceed(PhysicalRanges ranges, FreeMark mark) const noexcept;

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

  // Calls `claim(mark, latest)` for each stretch of pages or units with the same mark, other than `own`.
  template <class Claim>
  void visit_claims(PhysicalRanges ranges, FreeMark own, Claim claim) const {
    const auto visit = [&](FreeMark mark, Latest latest) {
      if (mark != kNoStream && mark != own) claim(mark, latest);
    };
    const auto visit_runs = [&](std::uint64_t page, std::uint64_t begin, std::uint64_t end) {
      runs_in(page).visit(unit(begin), unit(end), [&](const FreeRun& run) {
        visit(run.mark, Latest{run.sequence, run.exact});
      });
    };
    for (const PhysicalRange& range : ranges) {
      for_each_block(
          range, shift_,
          [&](std::uint64_t first, std::uint64_t last) {
            for (std::uint64_t page = first; page < last;) {
              if (marks_[page] == kMixed) {
                visit_runs(page, 0, std::uint64_t{1} << shift_);
                ++page;
                continue;
              }
              const std::uint64_t end = end_of_stretch(page, last);
              visit(marks_[page], Latest{latest_in(page, end), true});
              page = end;
            }
          },
          [&](std::uint64_t page, std::uint64_t begin, std::uint64_t end) {
            if (known_[page] == Known::Runs) {
              visit_runs(page, begin, end);
            } else {
              visit(marks_[page], Latest{sequences_[page], known_[page] == Known::OneFree});
            }
          });
    }
  }

  // What is known of a page. OneFree: one free freed all of its bytes, or none has freed any. LatestFree: the number of
  // the latest free of its parts, and their mark, which is the same; also where one free without an event freed all of
  // its bytes. Runs: each run's mark and number.
  enum class Known : std::uint8_t { OneFree, LatestFree, Runs };

  [[nodiscard]] static std::uint32_t unit(std::uint64_t bytes) noexcept;
  // The number of the latest free of these pages. Faster than std::max_element, which remembers where the maximum is.
  [[nodiscard]] std::uint64_t latest_in(std::uint64_t page, std::uint64_t end) const noexcept {
    const std::uint64_t* sequence = &sequences_[page];
    std::uint64_t latest = 0;
#pragma GCC unroll 4
    for (std::uint64_t left = end - page; left > 0; --left) latest = std::max(latest, *sequence++);
    return latest;
  }
  // The first page after `page` that bears another mark; `last` if none does.
  [[nodiscard]] std::uint64_t end_of_stretch(std::uint64_t page, std::uint64_t last) const noexcept;
  [[nodiscard]] const FreeRuns& runs_in(std::uint64_t page) const noexcept { return runs_[runs_of_[page] - 1]; }
  // The runs of a page, which has some from then on; null: host memory is missing.
  FreeRuns* make_runs(std::uint64_t page) noexcept;
  // Bytes [begin, end) of a page were freed. False: host memory is missing, and nothing changed.
  bool mark_run(std::uint64_t page, std::uint64_t begin, std::uint64_t end, FreeMark mark, std::uint64_t sequence,
                bool exact) noexcept;

  unsigned shift_;
  bool keeps_parts_ = false;
  SparseArray<FreeMark> marks_;           // by page
  SparseArray<std::uint64_t> sequences_;  // by page: the number of its latest free
  SparseArray<Known> known_;              // by page
  SparseArray<std::uint32_t> runs_of_;    // by page: 1 + the index of its runs in `runs_`; 0: it never had any
  std::vector<FreeRuns> runs_;            // only few pages are ever freed in part
};

}  // namespace stalloc::serve
