// SPDX-License-Identifier: Apache-2.0
#include "plan/packing/greedy.h"

#include <algorithm>
#include <limits>

namespace stalloc::plan {
namespace {

constexpr std::uint32_t kBuffersBetweenStops = 64;

}  // namespace

std::uint64_t peak_bytes(std::span<const Buffer> buffers) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> changes;  // modulo 2^64
  for (const Buffer& buffer : buffers) {
    for (const auto& [lower, upper] : buffer.spans) {
      changes.emplace_back(lower, buffer.bytes);
      changes.emplace_back(upper, -buffer.bytes);
    }
  }
  std::sort(changes.begin(), changes.end());
  std::uint64_t live = 0;
  std::uint64_t peak = 0;
  for (std::size_t i = 0; i < changes.size(); ++i) {
    live += changes[i].second;
    if (i + 1 == changes.size() || changes[i + 1].first != changes[i].first) peak = std::max(peak, live);
  }
  return peak;
}

GreedyPacker::GreedyPacker(std::span<const Buffer> buffers) : buffers_(buffers), seen_(buffers.size()) {
  std::vector<std::uint64_t> times;
  for (const Buffer& buffer : buffers) {
    for (const auto& [lower, upper] : buffer.spans) times.insert(times.end(), {lower, upper});
  }
  std::sort(times.begin(), times.end());
  times.erase(std::unique(times.begin(), times.end()), times.end());
  const auto rank = [&times](std::uint64_t time) {
    return static_cast<std::size_t>(std::lower_bound(times.begin(), times.end(), time) - times.begin());
  };
  spans_.resize(buffers.size());
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    for (const auto& [lower, upper] : buffers[i].spans) spans_[i].emplace_back(rank(lower), rank(upper));
  }
  times_ = std::max<std::size_t>(times.size(), 2) - 1;
}

std::optional<Packing> GreedyPacker::pack(std::span<const std::size_t> order, Gap gap,
                                          const std::function<bool()>& stop) {
  nodes_.assign(4 * times_, {});
  std::fill(seen_.begin(), seen_.end(), 0);
  query_ = 0;
  packing_ = {.offsets = std::vector<std::uint64_t>(buffers_.size()), .bytes = 0};
  for (const std::size_t index : order) {
    if (++query_ % kBuffersBetweenStops == 0 && stop && stop()) return std::nullopt;
    taken_.clear();
    for (const auto& [lower, upper] : spans_[index]) collect(1, 0, times_, lower, upper);
    std::sort(taken_.begin(), taken_.end());
    const std::uint64_t at = find_gap(buffers_[index].bytes, gap);
    packing_.offsets[index] = at;
    packing_.bytes = std::max(packing_.bytes, at + buffers_[index].bytes);
    for (const auto& [lower, upper] : spans_[index]) {
      insert(1, 0, times_, lower, upper, static_cast<std::uint32_t>(index));
    }
  }
  return std::move(packing_);
}

void GreedyPacker::collect(std::size_t node, std::size_t begin, std::size_t end, std::size_t lower, std::size_t upper) {
  if (upper <= begin || end <= lower) return;
  for (const std::uint32_t index : nodes_[node].placed) {
    if (seen_[index] == query_) continue;
    seen_[index] = query_;
    taken_.emplace_back(packing_.offsets[index], packing_.offsets[index] + buffers_[index].bytes);
  }
  if (!nodes_[node].below) return;
  const std::size_t middle = begin + (end - begin) / 2;
  collect(2 * node, begin, middle, lower, upper);
  collect(2 * node + 1, middle, end, lower, upper);
}

void GreedyPacker::insert(std::size_t node, std::size_t begin, std::size_t end, std::size_t lower, std::size_t upper,
                          std::uint32_t buffer) {
  if (upper <= begin || end <= lower) return;
  if (lower <= begin && end <= upper) {
    nodes_[node].placed.push_back(buffer);
    return;
  }
  nodes_[node].below = true;
  const std::size_t middle = begin + (end - begin) / 2;
  insert(2 * node, begin, middle, lower, upper, buffer);
  insert(2 * node + 1, middle, end, lower, upper, buffer);
}

// Between what is taken, sorted; behind it all when no gap is long enough.
std::uint64_t GreedyPacker::find_gap(std::uint64_t bytes, Gap gap) {
  std::uint64_t top = 0;
  std::uint64_t best = 0;
  std::uint64_t best_bytes = std::numeric_limits<std::uint64_t>::max();
  for (const auto& [begin, end] : taken_) {
    if (begin >= top + bytes && begin - top < best_bytes) {
      best = top;
      best_bytes = begin - top;
      if (gap == Gap::First) return best;
    }
    top = std::max(top, end);
  }
  return best_bytes == std::numeric_limits<std::uint64_t>::max() ? top : best;
}

}  // namespace stalloc::plan
