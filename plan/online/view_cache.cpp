// SPDX-License-Identifier: Apache-2.0
#include "plan/online/view_cache.h"

#include <algorithm>
#include <utility>

namespace stalloc::plan {

std::uint32_t ViewCache::add(const std::vector<Range>& pieces, std::uint64_t at, std::uint64_t room, Range lent) {
  if (unused_.empty()) {
    unused_.reserve(views_.size() + 1);
    views_.emplace_back();
    unused_.push_back(numbers());
  }
  const std::uint32_t number = unused_.back();
  StitchedView stitched(pieces);
  const std::uint64_t bytes = stitched.bytes();
  by_bytes_.emplace(bytes, number);
  (*this)[number] = {std::move(stitched), at, room, lent};
  unused_.pop_back();
  return number;
}

void ViewCache::lengthen(std::uint32_t number, const std::vector<Range>& pieces) {
  change(number, [&](StitchedView& stitched) { stitched.lengthen(pieces); });
}

void ViewCache::shorten(std::uint32_t number, std::size_t pieces) {
  change(number, [&](StitchedView& stitched) { stitched.shorten(pieces); });
}

void ViewCache::change(std::uint32_t number, auto change) {
  CachedView& view = (*this)[number];
  const auto entry = entry_of(number);
  change(view.stitched);
  auto node = by_bytes_.extract(entry);  // nothing throws from here on
  node.key() = view.bytes();
  by_bytes_.insert(std::move(node));
}

ViewCache::ByBytes::const_iterator ViewCache::entry_of(std::uint32_t number) const {
  const auto [first, last] = by_bytes_.equal_range((*this)[number].bytes());
  return std::find_if(first, last, [&](const auto& entry) { return entry.second == number; });
}

void ViewCache::remove(std::uint32_t number) {
  unused_.push_back(number);
  CachedView& gone = (*this)[number];
  by_bytes_.erase(entry_of(number));
  gone = {};
}

std::uint32_t ViewCache::least_recent() const {
  std::uint32_t oldest = 0;
  for (std::uint32_t number = 1; number <= numbers(); ++number) {
    const CachedView& candidate = (*this)[number];
    if (candidate.room == 0 || candidate.live > 0) continue;  // not in use, or lived in
    if (oldest == 0 || candidate.used_at < (*this)[oldest].used_at) oldest = number;
  }
  return oldest;
}

}  // namespace stalloc::plan
