// SPDX-License-Identifier: Apache-2.0
#include "plan/placement/free_space.h"

#include <algorithm>

namespace stalloc::plan {

Range FreeSpace::add(Range range) {
  if (range.begin == range.end) return range;
  const Index before = nodes_.at_or_before(range.begin);
  const bool touches = before != 0 && nodes_[before].second >= range.begin;
  const Index first = touches ? before : nodes_.next(before);
  if (first == 0 || nodes_[first].first > range.end) {
    nodes_.insert(before, {range.begin, range.end});
    bytes_ += range.bytes();
    return range;
  }
  range = {std::min(range.begin, nodes_[first].first), std::max(range.end, nodes_[first].second)};
  for (Index next = nodes_.next(first); next != 0 && nodes_[next].first <= range.end; next = nodes_.next(first)) {
    range.end = std::max(range.end, nodes_[next].second);
    erase(next);
  }
  change(first, range);
  return range;
}

void FreeSpace::subtract(Range range) {
  if (range.begin == range.end) return;
  for (Index at = ending_behind(range.begin); at != 0 && nodes_[at].first < range.end;) {
    const Range old{nodes_[at].first, nodes_[at].second};
    const Index next = nodes_.next(at);
    if (old.begin >= range.begin && old.end <= range.end) {
      erase(at);
    } else if (old.begin >= range.begin) {
      change(at, {range.end, old.end});
    } else {
      if (old.end > range.end) {
        nodes_.insert(at, {range.end, old.end});
        bytes_ += old.end - range.end;
      }
      change(at, {old.begin, range.begin});
    }
    at = next;
  }
}

void FreeSpace::erase(Index at) {
  bytes_ -= nodes_[at].second - nodes_[at].first;
  nodes_.erase(at);
}

void FreeSpace::change(Index at, Range range) {
  bytes_ += range.bytes() - (nodes_[at].second - nodes_[at].first);
  nodes_.change(at, {range.begin, range.end});
}

void FreeSpace::clear() {
  nodes_.clear();
  found_ = 0;
  bytes_ = 0;
}

FreeSpace::Index FreeSpace::ending_behind(std::uint64_t at) const {
  if (nodes_[found_].first <= at && nodes_[found_].second > at) return found_;
  const Index before = nodes_.at_or_before(at);
  return nodes_[before].second > at ? before : nodes_.next(before);
}

bool FreeSpace::contains(Range range) const {
  const Index at = ending_behind(range.begin);
  return at != 0 && nodes_[at].first <= range.begin && nodes_[at].second >= range.end;
}

void FreeSpace::intersect(Range range, std::vector<Range>& out) const {
  for (Index at = ending_behind(range.begin); at != 0 && nodes_[at].first < range.end; at = nodes_.next(at)) {
    out.push_back({std::max(nodes_[at].first, range.begin), std::min(nodes_[at].second, range.end)});
  }
}

std::optional<Range> FreeSpace::best_fit(std::uint64_t bytes) const {
  const Index found = nodes_.smallest(bytes);
  if (found == 0) return std::nullopt;
  found_ = found;
  return Range{nodes_[found].first, nodes_[found].second};
}

std::size_t FreeSpace::fits(std::uint64_t bytes, std::span<Range> out) const {
  std::size_t count = 0;
  for (Index at = nodes_.smallest(bytes); at != 0 && count < out.size(); at = nodes_.next_larger(at)) {
    out[count++] = {nodes_[at].first, nodes_[at].second};
  }
  return count;
}

std::optional<Range> FreeSpace::lowest_fit(std::uint64_t bytes) const {
  int left = kMostLookedAt;
  for (auto at = nodes_.begin(); at != nodes_.end() && left > 0; ++at, --left) {
    if (at->second - at->first >= bytes) return Range{at->first, at->second};
  }
  return std::nullopt;
}

std::optional<Range> FreeSpace::highest_fit(std::uint64_t bytes) const {
  int left = kMostLookedAt;
  for (auto at = nodes_.rbegin(); at != nodes_.rend() && left > 0; ++at, --left) {
    if (at->second - at->first >= bytes) return Range{at->first, at->second};
  }
  return std::nullopt;
}

}  // namespace stalloc::plan
