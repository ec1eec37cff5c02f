// SPDX-License-Identifier: Apache-2.0
#include "plan/packing/search.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <tuple>

namespace stalloc::plan {
namespace {

constexpr std::uint64_t kNodesBetweenStops = 256;
constexpr double kShare = 0.2;  // of the weight, for each of many items

}  // namespace

ContiguousSearch::ContiguousSearch(std::span<const Rectangle> rectangles) {
  make_sections(rectangles);
  weights_.resize(items_.size());
  for (Index a = 0; a < items_.size(); ++a) {
    for (Index b = 0; b < a; ++b) {
      if (items_[a].begin >= items_[b].end || items_[b].begin >= items_[a].end) continue;
      items_[a].overlaps.push_back(b);
      items_[b].overlaps.push_back(a);
    }
  }
}

// Walks through time. A section closes when something ends behind a beginning: it holds all that live then.
void ContiguousSearch::make_sections(std::span<const Rectangle> rectangles) {
  struct Moment {
    std::uint64_t time;
    bool begins;
    Index item;
    bool operator<(const Moment& other) const {  // ends come before beginnings
      return std::tie(time, begins, item) < std::tie(other.time, other.begins, other.item);
    }
  };
  std::vector<Moment> moments;
  items_.resize(rectangles.size());
  for (Index i = 0; i < rectangles.size(); ++i) {
    items_[i].bytes = rectangles[i].bytes;
    moments.push_back({rectangles[i].lower, true, i});
    moments.push_back({rectangles[i].upper, false, i});
  }
  std::sort(moments.begin(), moments.end());
  bool grown = false;
  for (const Moment& moment : moments) {
    if (moment.begins) {
      items_[moment.item].begin = sections_;
    } else {
      if (grown) ++sections_;
      items_[moment.item].end = sections_;
    }
    grown = moment.begins;
  }
}

std::vector<std::uint64_t> ContiguousSearch::contention() const {
  std::vector<std::uint64_t> total(sections_, 0);
  for (const Item& item : items_) {
    for (Index s = item.begin; s < item.end; ++s) total[s] += item.bytes;
  }
  std::vector<std::uint64_t> most;
  most.reserve(items_.size());
  for (const Item& item : items_)
    most.push_back(*std::max_element(total.begin() + item.begin, total.begin() + item.end));
  return most;
}

ContiguousSearch::Answer ContiguousSearch::run(std::uint64_t capacity, std::span<const double> priority,
                                               std::uint64_t nodes, const std::function<bool()>& stop) {
  capacity_ = capacity;
  nodes_left_ = nodes;
  stop_ = stop;
  gave_up_ = false;
  lowest_.assign(items_.size(), 0);
  placed_.assign(items_.size(), false);
  offsets_.assign(items_.size(), 0);
  total_.assign(sections_, 0);
  crossing_.assign(sections_, 0);
  floor_.assign(sections_, 0);
  raised_.clear();
  trail_.clear();
  Piece all{.items = std::vector<Index>(items_.size()), .begin = 0, .end = sections_};
  std::iota(all.items.begin(), all.items.end(), Index{0});
  std::stable_sort(all.items.begin(), all.items.end(), [&](Index a, Index b) { return priority[a] > priority[b]; });
  rank_.resize(items_.size());
  for (Index r = 0; r < all.items.size(); ++r) rank_[all.items[r]] = r;
  for (const Item& item : items_) {
    for (Index s = item.begin; s < item.end; ++s) total_[s] += item.bytes;
    for (Index s = item.begin; s + 1 < item.end; ++s) ++crossing_[s];
  }
  if (std::any_of(total_.begin(), total_.end(), [capacity](std::uint64_t total) { return total > capacity; })) {
    return Answer::Impossible;
  }
  if (solve_apart(all)) return Answer::Found;
  return gave_up_ ? Answer::GaveUp : Answer::Impossible;
}

// Searches pieces that no item connects one by one, since they are independent.
bool ContiguousSearch::solve_apart(const Piece& piece) {
  if (piece.items.empty()) return true;
  std::vector<Piece> pieces;
  std::vector<Index> piece_of(piece.end - piece.begin);
  Index begin = piece.begin;
  for (Index s = piece.begin; s < piece.end; ++s) {
    piece_of[s - piece.begin] = static_cast<Index>(pieces.size());
    if (crossing_[s] != 0 && s + 1 < piece.end) continue;
    pieces.push_back({.items = {}, .begin = begin, .end = s + 1, .offset = piece.offset, .rank = piece.rank});
    begin = s + 1;
  }
  for (const Index item : piece.items) pieces[piece_of[items_[item].begin - piece.begin]].items.push_back(item);
  return std::all_of(pieces.begin(), pieces.end(),
                     [this](const Piece& part) { return part.items.empty() || solve(part); });
}

bool ContiguousSearch::solve(const Piece& piece) {
  std::uint64_t top = kNothing;  // the lowest that any of them would reach
  for (const Index item : piece.items) top = std::min(top, lowest_[item] + items_[item].bytes);
  std::vector<Index> next;
  for (const Index item : piece.items) {
    const std::uint64_t at = lowest_[item];
    if (at >= top || at < piece.offset || (at == piece.offset && rank_[item] < piece.rank)) continue;
    next.push_back(item);
  }
  std::stable_sort(next.begin(), next.end(), [this](Index a, Index b) { return lowest_[a] < lowest_[b]; });
  for (const Index item : next) {
    if (nodes_left_ == 0 || (nodes_left_ % kNodesBetweenStops == 0 && stop_())) gave_up_ = true;
    if (gave_up_) return false;
    --nodes_left_;
    const Mark mark{trail_.size(), raised_.size()};
    if (place(item, piece)) {
      Piece rest{.items = {}, .begin = piece.begin, .end = piece.end, .offset = offsets_[item], .rank = rank_[item]};
      rest.items.reserve(piece.items.size());
      std::copy_if(piece.items.begin(), piece.items.end(), std::back_inserter(rest.items),
                   [item](Index other) { return other != item; });
      if (solve_apart(rest)) return true;
    }
    take_back(mark);
  }
  return false;
}

// False where something to come would no longer fit; take_back() is due in either case.
bool ContiguousSearch::place(Index index, const Piece& piece) {
  const Item& item = items_[index];
  trail_.push_back(index);
  placed_[index] = true;
  offsets_[index] = lowest_[index];
  for (Index s = item.begin; s < item.end; ++s) total_[s] -= item.bytes;
  for (Index s = item.begin; s + 1 < item.end; ++s) --crossing_[s];
  const std::uint64_t top = offsets_[index] + item.bytes;
  Index begin = item.begin;
  Index end = item.end;
  for (const Index other : item.overlaps) {
    if (placed_[other] || lowest_[other] >= top) continue;
    if (top + items_[other].bytes > capacity_) {
      weights_[other] += 1;
      return false;
    }
    raised_.push_back({other, lowest_[other]});
    lowest_[other] = top;
    begin = std::min(begin, items_[other].begin);
    end = std::max(end, items_[other].end);
  }
  const bool higher = offsets_[index] > piece.offset;  // for everything to come
  return fits(piece, higher ? piece.begin : begin, higher ? piece.end : end, offsets_[index], rank_[index]);
}

void ContiguousSearch::take_back(Mark mark) {
  for (; raised_.size() > mark.raised; raised_.pop_back()) lowest_[raised_.back().item] = raised_.back().before;
  for (; trail_.size() > mark.placed; trail_.pop_back()) {
    const Item& item = items_[trail_.back()];
    placed_[trail_.back()] = false;
    for (Index s = item.begin; s < item.end; ++s) total_[s] += item.bytes;
    for (Index s = item.begin; s + 1 < item.end; ++s) ++crossing_[s];
  }
}

// The lowest place that an item may still get. All that come later lie at `offset` or above, in the order of ranks
// among equals; an item that could lie lower, or should have come before, must therefore rest on another that is still
// to come.
std::uint64_t ContiguousSearch::lowest(Index index, std::uint64_t offset, Index rank) const {
  const std::uint64_t at = lowest_[index];
  if (at > offset || (at == offset && rank_[index] > rank)) return at;
  std::uint64_t rest = kNothing;
  for (const Index other : items_[index].overlaps) {
    if (!placed_[other]) rest = std::min(rest, std::max(lowest_[other], offset) + items_[other].bytes);
  }
  return rest;
}

bool ContiguousSearch::fits(const Piece& piece, Index begin, Index end, std::uint64_t offset, Index rank) {
  std::fill(floor_.begin() + begin, floor_.begin() + end, kNothing);
  for (const Index index : piece.items) {
    if (placed_[index] || items_[index].begin >= end || items_[index].end <= begin) continue;
    const std::uint64_t at = lowest(index, offset, rank);
    if (at > capacity_ - items_[index].bytes) {
      weights_[index] += 1;
      return false;
    }
    const Index last = std::min(items_[index].end, end);
    for (Index s = std::max(items_[index].begin, begin); s < last; ++s) floor_[s] = std::min(floor_[s], at);
  }
  for (Index s = begin; s < end; ++s) {
    if (total_[s] == 0 || floor_[s] + total_[s] <= capacity_) continue;
    blame(piece, s);
    return false;
  }
  return true;
}

// All items still to come in a section that is too full get a share of the weight.
void ContiguousSearch::blame(const Piece& piece, Index section) {
  for (const Index index : piece.items) {
    const Item& item = items_[index];
    if (!placed_[index] && item.begin <= section && section < item.end) weights_[index] += kShare;
  }
}

}  // namespace stalloc::plan
