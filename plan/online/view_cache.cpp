// SPDX-License-Identifier: Apache-2.0
#include "plan/online/view_cache.h"

#include <algorithm>
#include <utility>

namespace stalloc::plan {

std::uint32_t ViewCache::add(const std::vector<Range>& pieces, std::uint64_t at, bool of_step_plan) {
  if (unused_.empty()) {
    views_.emplace_back();
    try {
      unused_.reserve(views_.capacity());
      by_bytes_.reserve(views_.capacity());
    } catch (...) {
      views_.pop_back();
      throw;
    }
    unused_.push_back(numbers());
  }
  const std::uint32_t number = unused_.back();
  StitchedView view(pieces);
  const Range addresses{at, at + view.bytes()};
  (*this)[number] = {.stitched = std::move(view), .addresses = addresses, .of_step_plan = of_step_plan};
  unused_.pop_back();  // nothing throws from here on
  insert(number);
  link(number);
  return number;
}

void ViewCache::release_from_plan(std::uint32_t number) noexcept {
  CachedView& view = (*this)[number];
  view.of_step_plan = false;
  insert(number);
  if (view.live == 0) link(number);
}

// What is known of obstacles stays true: a hole divides the view as well.
void ViewCache::cut(std::uint32_t number, Range part) {
  erase(number);
  try {
    (*this)[number].stitched.cut(part);
  } catch (...) {
    insert(number);
    throw;
  }
  insert(number);
}

void ViewCache::change(std::uint32_t number, StitchedView pieces) noexcept {
  (*this)[number].stitched = std::move(pieces);
  (*this)[number].obstacles = {};
}

std::span<const ViewCache::Entry> ViewCache::from(std::uint64_t bytes) const {
  const auto first = std::ranges::lower_bound(by_bytes_, bytes, {}, &Entry::bytes);
  return {first, by_bytes_.end()};
}

void ViewCache::insert(std::uint32_t number) noexcept {
  if ((*this)[number].of_step_plan) return;
  const Entry entry{(*this)[number].bytes(), number};
  by_bytes_.insert(std::ranges::upper_bound(by_bytes_, entry.bytes, {}, &Entry::bytes), entry);
}

void ViewCache::erase(std::uint32_t number) noexcept {
  if ((*this)[number].of_step_plan) return;
  auto entry = std::ranges::lower_bound(by_bytes_, (*this)[number].bytes(), {}, &Entry::bytes);
  while (entry->number != number) ++entry;
  by_bytes_.erase(entry);
}

void ViewCache::remove(std::uint32_t number) {
  unused_.push_back(number);
  CachedView& gone = (*this)[number];
  if (gone.live == 0) unlink(number);
  erase(number);
  gone = {};
}

void ViewCache::enter(std::uint32_t number, std::uint64_t bytes) noexcept {
  CachedView& view = (*this)[number];
  if (view.live == 0) unlink(number);
  view.live += bytes;
}

void ViewCache::leave(std::uint32_t number, std::uint64_t bytes) noexcept {
  CachedView& view = (*this)[number];
  view.live -= bytes;
  if (view.live == 0) link(number);
}

void ViewCache::link(std::uint32_t number) noexcept {
  CachedView& view = (*this)[number];
  if (view.of_step_plan) return;
  view.older = most_recent_;
  view.newer = 0;
  (most_recent_ == 0 ? least_recent_ : (*this)[most_recent_].newer) = number;
  most_recent_ = number;
}

void ViewCache::unlink(std::uint32_t number) noexcept {
  const CachedView& view = (*this)[number];
  if (view.of_step_plan) return;
  (view.newer == 0 ? most_recent_ : (*this)[view.newer].older) = view.older;
  (view.older == 0 ? least_recent_ : (*this)[view.older].newer) = view.newer;
}

}  // namespace stalloc::plan
