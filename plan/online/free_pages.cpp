// SPDX-License-Identifier: Apache-2.0
#include "plan/online/free_pages.h"

#include <algorithm>

namespace stalloc::plan {
namespace {

// Chooses obstacles in a row of pages: few pages in use that leave no stretch of more than `most` pages. Each is the
// last page in use that is near enough to the one before.
class ObstacleChoice {
 public:
  explicit ObstacleChoice(std::uint64_t most) : most_(most) {}

  // `count` pages are in use, of which the first is `page`, at a position in the row. Pre: there are at most `most`
  // free pages between these and those of the call before.
  void in_use(std::uint64_t position, std::uint64_t page, std::uint64_t count) noexcept {
    while (position + count - 1 > begin_ + most_ && !is_full()) {
      const std::uint64_t furthest = begin_ + most_;
      if (furthest < position) {
        choose(end_ - 1, last_page_);
      } else {
        choose(furthest, page + furthest - position);
      }
    }
    end_ = position + count;
    last_page_ = page + count - 1;
  }
  // The row has `end` pages. False: more obstacles are needed than can be noted.
  bool finish(std::uint64_t end) noexcept {
    if (end - begin_ > most_ && end_ > begin_ && !is_full()) choose(end_ - 1, last_page_);
    if (end - begin_ > most_) return false;
    chosen_.longest = std::max(longest_, end - begin_);
    return true;
  }
  [[nodiscard]] const FreePages::Obstacles& chosen() const noexcept { return chosen_; }

 private:
  [[nodiscard]] bool is_full() const noexcept { return chosen_.count == FreePages::Obstacles::kMost; }
  void choose(std::uint64_t position, std::uint64_t page) noexcept {
    chosen_.pages[chosen_.count++] = page;
    longest_ = std::max(longest_, position - begin_);
    begin_ = position + 1;
  }

  const std::uint64_t most_;
  FreePages::Obstacles chosen_;
  std::uint64_t begin_ = 0;      // the position behind the obstacle chosen last
  std::uint64_t longest_ = 0;    // stretch before it
  std::uint64_t end_ = 0;        // the position behind the pages of the last call
  std::uint64_t last_page_ = 0;  // of these
};

}  // namespace

// A stretch may begin and end inside of pages, so it has less than two pages beside those that are wholly free.
bool FreePages::may_hold(std::span<const Range> pieces, std::uint64_t shown, std::uint64_t bytes,
                         Obstacles* known) const noexcept {
  const std::uint64_t two_pages = std::uint64_t{2} << shift_;
  if (bytes < two_pages) return true;
  const std::uint64_t needed = (bytes - two_pages) >> shift_;  // more pages than this
  if (block(*known, needed)) return false;
  const std::uint64_t all = shown >> shift_;
  ObstacleChoice choice(needed);
  std::uint64_t position = 0;  // pages that were looked at
  std::uint64_t run = 0;       // free pages before those that were not
  bool is_short = false;       // too few pages are left
  for (const Range& piece : pieces) {
    const std::uint64_t end = piece.end >> shift_;
    for (std::uint64_t at = piece.begin >> shift_; at < end && !is_short;) {
      const std::uint64_t word = words_[at / kBits] >> at % kBits;
      const std::uint64_t most = std::min(end - at, kBits - at % kBits);
      const std::uint64_t free = std::min<std::uint64_t>(std::countr_one(word), most);
      run += free;
      if (run > needed) return true;
      const std::uint64_t taken =
          free == most ? 0 : std::min<std::uint64_t>(std::countr_zero(word >> free), most - free);
      if (taken > 0) {
        choice.in_use(position + free, at + free, taken);
        run = 0;
      }
      at += free + taken;
      position += free + taken;
      is_short = run + all - position <= needed;
    }
    if (is_short) break;
  }
  if (choice.finish(all)) *known = choice.chosen();
  return false;
}

}  // namespace stalloc::plan
