// SPDX-License-Identifier: Apache-2.0
#include "plan/online/free_pages.h"

#include <algorithm>

namespace stalloc::plan {

// A stretch may begin and end inside of pages, so it has less than two pages beside those that are wholly free.
bool FreePages::may_hold(std::span<const Range> pieces, std::uint64_t shown, std::uint64_t bytes) const noexcept {
  const std::uint64_t two_pages = std::uint64_t{2} << shift_;
  if (bytes < two_pages) return true;
  const std::uint64_t needed = (bytes - two_pages) >> shift_;  // more pages than this
  std::uint64_t left = shown >> shift_;                        // pages that were not looked at
  std::uint64_t run = 0;                                       // free pages before those
  for (const Range& piece : pieces) {
    const std::uint64_t end = piece.end >> shift_;
    for (std::uint64_t at = piece.begin >> shift_; at < end;) {
      const std::uint64_t word = words_[at / kBits] >> at % kBits;
      const std::uint64_t most = std::min(end - at, kBits - at % kBits);
      const std::uint64_t free = std::min<std::uint64_t>(std::countr_one(word), most);
      run += free;
      if (run > needed) return true;
      const std::uint64_t taken =
          free == most ? 0 : std::min<std::uint64_t>(std::countr_zero(word >> free), most - free);
      if (taken > 0) run = 0;
      at += free + taken;
      left -= free + taken;
      if (run + left <= needed) return false;
    }
  }
  return false;
}

}  // namespace stalloc::plan
