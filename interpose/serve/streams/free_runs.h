// SPDX-License-Identifier: Apache-2.0
// Which stream freed which units of one page last.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "interpose/serve/streams/stream_ordinal.h"

namespace stalloc::serve {

// Units that the same stream freed, up to the next run.
struct FreeRun {
  std::uint64_t sequence = 0;  // the number of the latest free; 0: they were never freed, or no work uses them any more
  std::uint32_t begin = 0;     // the first unit
  FreeMark mark = kNoStream;
  bool exact = true;  // false: some of the units may have been freed earlier, or nobody will ask for the very free
};

// The runs of a page. Neighboring blocks share a page at their ends, so most pages that have several runs have two or
// three. Of a page with many, neighboring runs of one mark are joined, the earliest first, except for exact ones: a
// stream may have to wait for that very free, as in a plan of small blocks on several streams. Not thread-safe: the
// heap's lock protects it. Nothing throws.
class FreeRuns {
 public:
  // Of more runs than these, neighbors that are not exact are joined.
  static constexpr std::size_t kMost = 15;

  // The page has one run, which begins at its first unit. False: host memory is missing.
  bool begin_with(FreeRun run) noexcept;
  // Units [run.begin, end) were freed as `run` says. `units`: those of the page. False: host memory is missing, and
  // nothing changed.
  bool assign(FreeRun run, std::uint32_t end, std::uint32_t units) noexcept;

  // The mark of all units that have one; kNoStream if none has, and kMixed if they have several.
  [[nodiscard]] FreeMark common_mark() const noexcept;
  // Calls `visit(run)` for each run with some of the units [begin, end).
  template <class Visit>
  void visit(std::uint32_t begin, std::uint32_t end, Visit visit) const {
    for (std::size_t i = first_behind(begin) - 1; i < runs_.size() && runs_[i].begin < end; ++i) visit(runs_[i]);
  }

 private:
  // The index of the first run that begins after `unit`.
  [[nodiscard]] std::size_t first_behind(std::uint32_t unit) const noexcept {
    const auto behind = std::upper_bound(runs_.begin(), runs_.end(), unit,
                                         [](std::uint32_t at, const FreeRun& run) { return at < run.begin; });
    return static_cast<std::size_t>(behind - runs_.begin());
  }
  bool make_room(std::size_t more) noexcept;
  std::size_t split(std::uint32_t unit) noexcept;
  void join_earliest() noexcept;

  std::vector<FreeRun> runs_;  // in the order of their units; the first begins at unit 0
};

}  // namespace stalloc::serve
