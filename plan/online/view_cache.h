// SPDX-License-Identifier: Apache-2.0
// The existing stitched views, kept to serve later requests, as in GMLake's (ASPLOS'24) pool of stitched blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "plan/online/free_pages.h"
#include "plan/placement/stitched_view.h"

namespace stalloc::plan {

// Views are numbered from 1 on, and Place::view is such a number; numbers of removed views are reused.
// Pure; not thread-safe. Throws std::bad_alloc, with nothing changed.
class ViewCache {
 public:
  struct CachedView {
    StitchedView stitched;       // empty: the number is not in use
    Range addresses;             // in the range of addresses for views
    std::uint64_t live = 0;      // bytes of the requests that live in it
    std::uint64_t freed_at = 0;  // number of the latest free in it, as its user counts them
    std::uint32_t older = 0;     // neighbors among the views in which nothing lives; 0: none
    std::uint32_t newer = 0;
    FreePages::Obstacles obstacles{};  // that were found when it was searched in vain
    bool of_step_plan = false;         // only the plan's requests use it, and it is not removed to make room
    [[nodiscard]] std::uint64_t bytes() const { return stitched.bytes(); }
  };
  // A view in the order of sizes.
  struct Entry {
    std::uint64_t bytes = 0;
    std::uint32_t number = 0;
  };

  // Adds a view whose addresses begin at `at`, and returns its number. Views `of_step_plan` are in none of the lists
  // below until `release_from_plan` is called, from which on they are as others.
  std::uint32_t add(const std::vector<Range>& pieces, std::uint64_t at, bool of_step_plan = false);
  void release_from_plan(std::uint32_t number) noexcept;
  // As StitchedView::cut.
  void cut(std::uint32_t number, Range part);
  // Lets a view show other pieces, as many bytes.
  void change(std::uint32_t number, StitchedView pieces) noexcept;
  void remove(std::uint32_t number);

  // A request of `bytes`, not 0, begins (`enter`) or ends (`leave`) to live in a view. A view in which nothing lives
  // any more then counts as the most recently used.
  void enter(std::uint32_t number, std::uint64_t bytes) noexcept;
  void leave(std::uint32_t number, std::uint64_t bytes) noexcept;
  // The list of the views in which nothing lives, from the most to the least recently used. 0 stands for no view.
  [[nodiscard]] std::uint32_t most_recent() const noexcept { return most_recent_; }
  [[nodiscard]] std::uint32_t least_recent() const noexcept { return least_recent_; }
  [[nodiscard]] std::uint32_t older(std::uint32_t number) const { return (*this)[number].older; }
  // Pre: nothing lives in the view. It counts as the most recently used.
  void refresh(std::uint32_t number) noexcept {
    unlink(number);
    link(number);
  }

  [[nodiscard]] CachedView& operator[](std::uint32_t number) { return views_[number - 1]; }
  [[nodiscard]] const CachedView& operator[](std::uint32_t number) const { return views_[number - 1]; }
  // The highest number that a view has had.
  [[nodiscard]] std::uint32_t numbers() const { return static_cast<std::uint32_t>(views_.size()); }
  // How many views exist; the same without those of a step plan.
  [[nodiscard]] std::size_t existing() const { return views_.size() - unused_.size(); }
  [[nodiscard]] std::size_t count() const { return by_bytes_.size(); }
  // The views of at least `bytes`, the smallest first. Valid until the views change.
  [[nodiscard]] std::span<const Entry> from(std::uint64_t bytes) const;

 private:
  // Pre: by_bytes_ has room. None of these four functions does anything with a view of a step plan.
  void insert(std::uint32_t number) noexcept;
  void erase(std::uint32_t number) noexcept;
  void link(std::uint32_t number) noexcept;
  void unlink(std::uint32_t number) noexcept;

  std::vector<CachedView> views_;
  std::vector<std::uint32_t> unused_;  // numbers
  std::vector<Entry> by_bytes_;        // the existing views; an array, since requests examine hundreds of them
  std::uint32_t most_recent_ = 0;
  std::uint32_t least_recent_ = 0;
};

}  // namespace stalloc::plan
