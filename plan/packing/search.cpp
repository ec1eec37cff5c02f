// SPDX-License-Identifier: Apache-2.0
#include "plan/packing/search.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <tuple>

namespace stalloc::plan {
namespace {

constexpr std::uint64_t kNodesBetweenStops = 256;
constexpr double kShare = 0.2;  // of the weight, for each of many buffers

}  // namespace

ContiguousSearch::ContiguousSearch(std::span<const Rectangle> rectangles) {
  make_sections(rectangles);
  weights_.resize(buffers_.size());
  for (Index a = 0; a < buffers_.size(); ++a) {
    for (Index b = 0; b < a; ++b) {
      if (buffers_[a].begin >= buffers_[b].end || buffers_[b].begin >= buffers_[a].end) continue;
      buffers_[a].overlaps.push_back(b);
      buffers_[b].overlaps.push_back(a);
    }
  }
}

// Walks through time. A section closes when something ends behind a beginning: it holds all that live then.
void ContiguousSearch::make_sections(std::span<const Rectangle> rectangles) {
  struct Moment {
    std::uint64_t time;
    bool begins;
    Index buffer;
    bool operator<(const Moment& other) const {  // ends come before beginnings
      return std::tie(time, begins, buffer) < std::tie(other.time, other.begins, other.buffer);
    }
  };
  std::vector<Moment> moments;
  buffers_.resize(rectangles.size());
  for (Index i = 0; i < rectangles.size(); ++i) {
    buffers_[i].bytes = rectangles[i].bytes;
    moments.push_back({rectangles[i].lower, true, i});
    moments.push_back({rectangles[i].upper, false, i});
  }
  std::sort(moments.begin(), moments.end());
  bool grown = false;
  for (const Moment& moment : moments) {
    if (moment.begins) {
      buffers_[moment.buffer].begin = sections_;
    } else {
      if (grown) ++sections_;
      buffers_[moment.buffer].end = sections_;
    }
    grown = moment.begins;
  }
}

std::vector<std::uint64_t> ContiguousSearch::contention() const {
  std::vector<std::uint64_t> total(sections_, 0);
  for (const BufferData& buffer : buffers_) {
    for (Index s = buffer.begin; s < buffer.end; ++s) total[s] += buffer.bytes;
  }
  std::vector<std::uint64_t> most;
  most.reserve(buffers_.size());
  for (const BufferData& buffer : buffers_)
    most.push_back(*std::max_element(total.begin() + buffer.begin, total.begin() + buffer.end));
  return most;
}

ContiguousSearch::Answer ContiguousSearch::run(std::uint64_t capacity, std::span<const double> priority,
                                               std::uint64_t nodes, const std::function<bool()>& stop) {
  capacity_ = capacity;
  nodes_left_ = nodes;
  stop_ = stop;
  gave_up_ = false;
  lowest_.assign(buffers_.size(), 0);
  placed_.assign(buffers_.size(), false);
  offsets_.assign(buffers_.size(), 0);
  total_.assign(sections_, 0);
  crossing_.assign(sections_, 0);
  floor_.assign(sections_, 0);
  offset_changes_.clear();
  trail_.clear();
  Partition all{.buffers = std::vector<Index>(buffers_.size()), .begin = 0, .end = sections_};
  std::iota(all.buffers.begin(), all.buffers.end(), Index{0});
  std::stable_sort(all.buffers.begin(), all.buffers.end(), [&](Index a, Index b) { return priority[a] > priority[b]; });
  rank_.resize(buffers_.size());
  for (Index r = 0; r < all.buffers.size(); ++r) rank_[all.buffers[r]] = r;
  for (const BufferData& buffer : buffers_) {
    for (Index s = buffer.begin; s < buffer.end; ++s) total_[s] += buffer.bytes;
    for (Index s = buffer.begin; s + 1 < buffer.end; ++s) ++crossing_[s];
  }
  if (std::any_of(total_.begin(), total_.end(), [capacity](std::uint64_t total) { return total > capacity; })) {
    return Answer::Impossible;
  }
  if (solve_apart(all)) return Answer::Found;
  return gave_up_ ? Answer::GaveUp : Answer::Impossible;
}

// Searches partitions that no buffer connects one by one, since they are independent.
bool ContiguousSearch::solve_apart(const Partition& partition) {
  if (partition.buffers.empty()) return true;
  std::vector<Partition> partitions;
  std::vector<Index> partition_of(partition.end - partition.begin);
  Index begin = partition.begin;
  for (Index s = partition.begin; s < partition.end; ++s) {
    partition_of[s - partition.begin] = static_cast<Index>(partitions.size());
    if (crossing_[s] != 0 && s + 1 < partition.end) continue;
    partitions.push_back(
        {.buffers = {}, .begin = begin, .end = s + 1, .offset = partition.offset, .rank = partition.rank});
    begin = s + 1;
  }
  for (const Index buffer : partition.buffers)
    partitions[partition_of[buffers_[buffer].begin - partition.begin]].buffers.push_back(buffer);
  return std::all_of(partitions.begin(), partitions.end(),
                     [this](const Partition& part) { return part.buffers.empty() || solve(part); });
}

bool ContiguousSearch::solve(const Partition& partition) {
  std::uint64_t top = kNothing;  // the lowest that any of them would reach
  for (const Index buffer : partition.buffers) top = std::min(top, lowest_[buffer] + buffers_[buffer].bytes);
  std::vector<Index> next;
  for (const Index buffer : partition.buffers) {
    const std::uint64_t at = lowest_[buffer];
    if (at >= top || at < partition.offset || (at == partition.offset && rank_[buffer] < partition.rank)) continue;
    next.push_back(buffer);
  }
  std::stable_sort(next.begin(), next.end(), [this](Index a, Index b) { return lowest_[a] < lowest_[b]; });
  for (const Index buffer : next) {
    if (nodes_left_ == 0 || (nodes_left_ % kNodesBetweenStops == 0 && stop_())) gave_up_ = true;
    if (gave_up_) return false;
    --nodes_left_;
    const Checkpoint checkpoint{trail_.size(), offset_changes_.size()};
    if (place(buffer, partition)) {
      Partition rest{.buffers = {},
                     .begin = partition.begin,
                     .end = partition.end,
                     .offset = offsets_[buffer],
                     .rank = rank_[buffer]};
      rest.buffers.reserve(partition.buffers.size());
      std::copy_if(partition.buffers.begin(), partition.buffers.end(), std::back_inserter(rest.buffers),
                   [buffer](Index other) { return other != buffer; });
      if (solve_apart(rest)) return true;
    }
    take_back(checkpoint);
  }
  return false;
}

// False where something to come would no longer fit; take_back() is due in either case.
bool ContiguousSearch::place(Index index, const Partition& partition) {
  const BufferData& buffer = buffers_[index];
  trail_.push_back(index);
  placed_[index] = true;
  offsets_[index] = lowest_[index];
  for (Index s = buffer.begin; s < buffer.end; ++s) total_[s] -= buffer.bytes;
  for (Index s = buffer.begin; s + 1 < buffer.end; ++s) --crossing_[s];
  const std::uint64_t top = offsets_[index] + buffer.bytes;
  Index begin = buffer.begin;
  Index end = buffer.end;
  for (const Index other : buffer.overlaps) {
    if (placed_[other] || lowest_[other] >= top) continue;
    if (top + buffers_[other].bytes > capacity_) {
      weights_[other] += 1;
      return false;
    }
    offset_changes_.push_back({other, lowest_[other]});
    lowest_[other] = top;
    begin = std::min(begin, buffers_[other].begin);
    end = std::max(end, buffers_[other].end);
  }
  const bool higher = offsets_[index] > partition.offset;  // for everything to come
  return fits(partition, higher ? partition.begin : begin, higher ? partition.end : end, offsets_[index], rank_[index]);
}

void ContiguousSearch::take_back(Checkpoint checkpoint) {
  for (; offset_changes_.size() > checkpoint.changes; offset_changes_.pop_back())
    lowest_[offset_changes_.back().buffer] = offset_changes_.back().before;
  for (; trail_.size() > checkpoint.placed; trail_.pop_back()) {
    const BufferData& buffer = buffers_[trail_.back()];
    placed_[trail_.back()] = false;
    for (Index s = buffer.begin; s < buffer.end; ++s) total_[s] += buffer.bytes;
    for (Index s = buffer.begin; s + 1 < buffer.end; ++s) ++crossing_[s];
  }
}

// The lowest place that a buffer may still get. All that come later lie at `offset` or above, in the order of ranks
// among equals; a buffer that could lie lower, or should have come before, must therefore rest on another that is still
// to come.
std::uint64_t ContiguousSearch::lowest(Index index, std::uint64_t offset, Index rank) const {
  const std::uint64_t at = lowest_[index];
  if (at > offset || (at == offset && rank_[index] > rank)) return at;
  std::uint64_t rest = kNothing;
  for (const Index other : buffers_[index].overlaps) {
    if (!placed_[other]) rest = std::min(rest, std::max(lowest_[other], offset) + buffers_[other].bytes);
  }
  return rest;
}

bool ContiguousSearch::fits(const Partition& partition, Index begin, Index end, std::uint64_t offset, Index rank) {
  std::fill(floor_.begin() + begin, floor_.begin() + end, kNothing);
  for (const Index index : partition.buffers) {
    if (placed_[index] || buffers_[index].begin >= end || buffers_[index].end <= begin) continue;
    const std::uint64_t at = lowest(index, offset, rank);
    if (at > capacity_ - buffers_[index].bytes) {
      weights_[index] += 1;
      return false;
    }
    const Index last = std::min(buffers_[index].end, end);
    for (Index s = std::max(buffers_[index].begin, begin); s < last; ++s) floor_[s] = std::min(floor_[s], at);
  }
  for (Index s = begin; s < end; ++s) {
    if (total_[s] == 0 || floor_[s] + total_[s] <= capacity_) continue;
    blame(partition, s);
    return false;
  }
  return true;
}

// All buffers still to come in a section that is too full get a share of the weight.
void ContiguousSearch::blame(const Partition& partition, Index section) {
  for (const Index index : partition.buffers) {
    const BufferData& buffer = buffers_[index];
    if (!placed_[index] && buffer.begin <= section && section < buffer.end) weights_[index] += kShare;
  }
}

}  // namespace stalloc::plan
