// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/streams/free_runs.h"

#include <iterator>
#include <new>

namespace stalloc::serve {

bool FreeRuns::make_room(std::size_t more) noexcept {
  if (runs_.size() + more <= runs_.capacity()) return true;
  try {
    runs_.reserve(std::max(kMost + more, 2 * runs_.size()));
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

bool FreeRuns::begin_with(FreeRun run) noexcept {
  runs_.clear();
  if (!make_room(1)) return false;
  run.begin = 0;
  runs_.push_back(run);
  return true;
}

bool FreeRuns::assign(FreeRun run, std::uint32_t end, std::uint32_t units) noexcept {
  if (!make_room(2)) return false;
  const std::size_t first = split(run.begin);
  const std::size_t behind = end == units ? runs_.size() : split(end);
  runs_[first] = run;
  runs_.erase(std::next(runs_.begin(), static_cast<std::ptrdiff_t>(first + 1)),
              std::next(runs_.begin(), static_cast<std::ptrdiff_t>(behind)));
  if (runs_.size() > kMost) join_earliest();
  return true;
}

// Lets a run begin at `unit`, and returns its index. Pre: there is room for one more run.
std::size_t FreeRuns::split(std::uint32_t unit) noexcept {
  const std::size_t behind = first_behind(unit);
  FreeRun rest = runs_[behind - 1];
  if (rest.begin == unit) return behind - 1;
  rest.begin = unit;
  runs_.insert(std::next(runs_.begin(), static_cast<std::ptrdiff_t>(behind)), rest);
  return behind;
}

// Joins the two neighbors of one mark whose latest free is the earliest, if there are such neighbors that are not exact
// or have the same free.
void FreeRuns::join_earliest() noexcept {
  std::size_t best = 0;  // the second of them
  std::uint64_t earliest = ~std::uint64_t{0};
  for (std::size_t i = 1; i < runs_.size(); ++i) {
    const FreeRun& first = runs_[i - 1];
    const FreeRun& second = runs_[i];
    const std::uint64_t latest = std::max(first.sequence, second.sequence);
    if (first.mark != second.mark || latest >= earliest) continue;
    if ((first.exact || second.exact) && first.sequence != second.sequence) continue;
    best = i;
    earliest = latest;
  }
  if (best == 0) return;
  FreeRun& joined = runs_[best - 1];
  joined.exact = joined.exact && runs_[best].exact && joined.sequence == runs_[best].sequence;
  joined.sequence = earliest;
  runs_.erase(std::next(runs_.begin(), static_cast<std::ptrdiff_t>(best)));
}

FreeMark FreeRuns::common_mark() const noexcept {
  FreeMark common = kNoStream;
  for (const FreeRun& run : runs_) {
    if (run.mark == kNoStream || run.mark == common) continue;
    if (common != kNoStream) return kMixed;
    common = run.mark;
  }
  return common;
}

}  // namespace stalloc::serve
