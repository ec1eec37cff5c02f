#include "plan/free_space.h"

#include <algorithm>

namespace stalloc::plan {

void FreeSpace::insert(Range range) {
  ends_.emplace(range.begin, range.end);
  sizes_.emplace(range.bytes(), range.begin);
  bytes_ += range.bytes();
}

void FreeSpace::erase(Iterator at) {
  sizes_.erase({at->second - at->first, at->first});
  bytes_ -= at->second - at->first;
  ends_.erase(at);
}

// Keeps the nodes: most changes move one end of a range, and memory for nodes costs more than the rest.
void FreeSpace::change(Iterator at, Range range) {
  auto size = sizes_.extract({at->second - at->first, at->first});
  bytes_ += range.bytes() - (at->second - at->first);
  size.value() = {range.bytes(), range.begin};
  sizes_.insert(std::move(size));
  at->second = range.end;
  if (at->first == range.begin) return;
  const auto next = std::next(at);
  auto node = ends_.extract(at);
  node.key() = range.begin;
  ends_.insert(next, std::move(node));
}

void FreeSpace::add(Range range) {
  if (range.begin == range.end) return;
  auto first = ends_.upper_bound(range.begin);
  if (first != ends_.begin() && std::prev(first)->second >= range.begin) --first;
  if (first == ends_.end() || first->first > range.end) return insert(range);
  range.begin = std::min(range.begin, first->first);
  range.end = std::max(range.end, first->second);
  for (auto next = std::next(first); next != ends_.end() && next->first <= range.end;) {
    range.end = std::max(range.end, next->second);
    erase(next++);
  }
  change(first, range);
}

void FreeSpace::subtract(Range range) {
  if (range.begin == range.end) return;
  auto next = ends_.upper_bound(range.begin);
  if (next != ends_.begin() && std::prev(next)->second > range.begin) --next;
  while (next != ends_.end() && next->first < range.end) {
    const auto at = next++;
    const Range old{at->first, at->second};
    if (old.begin < range.begin) {
      change(at, {old.begin, range.begin});
      if (old.end > range.end) insert({range.end, old.end});
    } else if (old.end > range.end) {
      change(at, {range.end, old.end});
    } else {
      erase(at);
    }
  }
}

void FreeSpace::clear() {
  ends_.clear();
  sizes_.clear();
  bytes_ = 0;
}

bool FreeSpace::contains(Range range) const {
  auto next = ends_.upper_bound(range.begin);
  return next != ends_.begin() && std::prev(next)->second >= range.end;
}

void FreeSpace::intersect(Range range, std::vector<Range>& out) const {
  for (auto free = at_or_after(range.begin); free && free->begin < range.end; free = at_or_after(free->end)) {
    out.push_back({std::max(free->begin, range.begin), std::min(free->end, range.end)});
  }
}

std::optional<Range> FreeSpace::best_fit(std::uint64_t bytes) const {
  const auto found = sizes_.lower_bound({bytes, 0});
  if (found == sizes_.end()) return std::nullopt;
  return Range{found->second, found->second + found->first};
}

std::size_t FreeSpace::fits(std::uint64_t bytes, std::span<Range> out) const {
  std::size_t count = 0;
  for (auto found = sizes_.lower_bound({bytes, 0}); found != sizes_.end() && count < out.size(); ++found) {
    out[count++] = {found->second, found->second + found->first};
  }
  return count;
}

std::optional<Range> FreeSpace::lowest_fit(std::uint64_t bytes) const {
  int left = kMostLookedAt;
  for (auto at = ends_.begin(); at != ends_.end() && left > 0; ++at, --left) {
    if (at->second - at->first >= bytes) return Range{at->first, at->second};
  }
  return std::nullopt;
}

std::optional<Range> FreeSpace::highest_fit(std::uint64_t bytes) const {
  int left = kMostLookedAt;
  for (auto at = ends_.rbegin(); at != ends_.rend() && left > 0; ++at, --left) {
    if (at->second - at->first >= bytes) return Range{at->first, at->second};
  }
  return std::nullopt;
}

std::optional<Range> FreeSpace::at_or_after(std::uint64_t at) const {
  auto next = ends_.upper_bound(at);
  if (next != ends_.begin() && std::prev(next)->second > at) --next;
  if (next == ends_.end()) return std::nullopt;
  return Range{next->first, next->second};
}

}  // namespace stalloc::plan
