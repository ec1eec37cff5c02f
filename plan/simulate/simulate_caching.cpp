// SPDX-License-Identifier: Apache-2.0
#include "plan/simulate/simulate_caching.h"

#include <algorithm>

#include "plan/plan.h"

namespace stalloc::plan {
namespace {

// Names and values as in PyTorch.
constexpr std::uint64_t kMinBlockSize = 512;
constexpr std::uint64_t kSmallSize = std::uint64_t{1} << 20;
constexpr std::uint64_t kSmallBuffer = std::uint64_t{2} << 20;
constexpr std::uint64_t kLargeBuffer = std::uint64_t{20} << 20;
constexpr std::uint64_t kMinLargeAlloc = std::uint64_t{10} << 20;
constexpr std::uint64_t kRoundLarge = std::uint64_t{2} << 20;
// Address space of an expandable segment, more than any device's memory: one for each stream and pool is enough.
constexpr std::uint64_t kExpandableSpan = std::uint64_t{1} << 48;

std::uint64_t segment_size(std::uint64_t size) {
  if (size <= kSmallSize) return kSmallBuffer;
  if (size < kMinLargeAlloc) return kLargeBuffer;
  return round_up(size, kRoundLarge);
}

}  // namespace

CachingAllocator::BlockIndex CachingAllocator::allocate(std::uint64_t bytes, std::uint32_t stream) {
  const std::uint64_t size = std::max(round_up(bytes, kMinBlockSize), kMinBlockSize);
  const Pool pool = is_small(size) ? Small : Large;
  const bool expandable = segments_ == Segments::Expandable;
  std::optional<BlockIndex> block = take_free(pool, stream, size);
  if (!block) block = expandable ? grow_segment(pool, stream, size) : add_segment(pool, stream, size);
  const std::uint64_t left = blocks_[*block].size - size;
  const bool splits = pool == Small || expandable ? left >= kMinBlockSize : left > kSmallSize;
  if (splits) split(*block, size);
  blocks_[*block].allocated = true;
  allocated_ += blocks_[*block].size;
  peak_allocated_ = std::max(peak_allocated_, allocated_);
  return *block;
}

void CachingAllocator::free(BlockIndex index) {
  blocks_[index].allocated = false;
  allocated_ -= blocks_[index].size;
  const Pool pool = blocks_[index].pool;
  const auto joins = [this, pool](BlockIndex other) {
    if (other == kNone || blocks_[other].allocated) return false;
    free_[pool].erase(key_of(other));
    return true;
  };
  if (joins(blocks_[index].previous)) index = merge(blocks_[index].previous, index);
  if (joins(blocks_[index].next)) index = merge(index, blocks_[index].next);
  free_[pool].insert(key_of(index));
  if (is_whole_segment(blocks_[index])) idle_ += blocks_[index].size;
}

bool CachingAllocator::is_small(std::uint64_t bytes) { return round_up(bytes, kMinBlockSize) <= kSmallSize; }

std::vector<CachingAllocator::Piece> CachingAllocator::pieces() const {
  std::vector<bool> is_unused(blocks_.size());
  for (const BlockIndex index : unused_) is_unused[index] = true;
  std::vector<Piece> pieces;
  for (BlockIndex first = 0; first < blocks_.size(); ++first) {
    if (is_unused[first] || blocks_[first].previous != kNone) continue;
    for (BlockIndex index = first; index != kNone; index = blocks_[index].next) {
      const Block& block = blocks_[index];
      pieces.push_back({.block = index,
                        .bytes = block.size,
                        .stream = block.stream,
                        .small = block.pool == Small,
                        .allocated = block.allocated,
                        .begins_segment = index == first});
    }
  }
  return pieces;
}

CachingAllocator::Key CachingAllocator::key_of(BlockIndex index) const {
  const Block& block = blocks_[index];
  return {block.stream, block.size, block.at, index};
}

// True for the free block at the growing end of a segment. PyTorch takes its size for that of the whole address range
// behind it, so that any other block that is large enough goes first.
bool CachingAllocator::may_follow(BlockIndex index) const {
  return segments_ == Segments::Expandable && blocks_[index].next == kNone;
}

std::optional<CachingAllocator::BlockIndex> CachingAllocator::take_free(Pool pool, std::uint32_t stream,
                                                                        std::uint64_t size) {
  auto best = free_[pool].lower_bound({.stream = stream, .size = size, .at = 0, .block = 0});
  if (best == free_[pool].end() || best->stream != stream) return std::nullopt;
  if (may_follow(best->block)) {
    const auto next = std::next(best);
    if (next != free_[pool].end() && next->stream == stream) best = next;
  }
  const BlockIndex index = best->block;
  free_[pool].erase(best);
  if (is_whole_segment(blocks_[index])) idle_ -= blocks_[index].size;
  return index;
}

CachingAllocator::BlockIndex CachingAllocator::add_segment(Pool pool, std::uint32_t stream, std::uint64_t size) {
  const std::uint64_t bytes = segment_size(size);
  lowest_ -= bytes;
  held_ += bytes;
  return new_block({.at = lowest_, .size = bytes, .stream = stream, .pool = pool});
}

// Maps as many pages as are missing behind what is free at the end, if anything.
CachingAllocator::BlockIndex CachingAllocator::grow_segment(Pool pool, std::uint32_t stream, std::uint64_t size) {
  auto [at, first] = growing_[pool].try_emplace(stream);
  ExpandableSegment& segment = at->second;
  if (first) {
    lowest_ -= kExpandableSpan;
    segment.mapped_end = lowest_;
  }
  const bool continues = segment.last != kNone && !blocks_[segment.last].allocated;
  const std::uint64_t there = continues ? blocks_[segment.last].size : 0;
  if (continues && is_whole_segment(blocks_[segment.last])) idle_ -= there;
  const std::uint64_t bytes = round_up(size - there, pool == Small ? kSmallBuffer : kLargeBuffer);
  held_ += bytes;
  const BlockIndex added =
      new_block({.at = segment.mapped_end, .size = bytes, .stream = stream, .pool = pool, .previous = segment.last});
  if (segment.last != kNone) blocks_[segment.last].next = added;
  segment.mapped_end += bytes;
  if (!continues) return segment.last = added;
  free_[pool].erase(key_of(segment.last));
  return segment.last = merge(segment.last, added);
}

// Leaves `size` bytes in the block and makes a free one of the rest.
void CachingAllocator::split(BlockIndex index, std::uint64_t size) {
  const Block block = blocks_[index];
  const BlockIndex rest = new_block({.at = block.at + size,
                                     .size = block.size - size,
                                     .stream = block.stream,
                                     .pool = block.pool,
                                     .previous = index,
                                     .next = block.next});
  if (block.next != kNone) blocks_[block.next].previous = rest;
  blocks_[index].next = rest;
  blocks_[index].size = size;
  free_[block.pool].insert(key_of(rest));
  const auto growing = growing_[block.pool].find(block.stream);
  if (growing != growing_[block.pool].end() && growing->second.last == index) growing->second.last = rest;
}

// Both are neighbors, `left` the lower one, and not in the free set. Returns `left`, which takes the bytes of `right`.
CachingAllocator::BlockIndex CachingAllocator::merge(BlockIndex left, BlockIndex right) {
  const Block gone = blocks_[right];
  blocks_[left].size += gone.size;
  blocks_[left].next = gone.next;
  if (gone.next != kNone) blocks_[gone.next].previous = left;
  const auto growing = growing_[gone.pool].find(gone.stream);
  if (growing != growing_[gone.pool].end() && growing->second.last == right) growing->second.last = left;
  unused_.push_back(right);
  return left;
}

CachingAllocator::BlockIndex CachingAllocator::new_block(const Block& block) {
  if (unused_.empty()) {
    blocks_.push_back(block);
    return static_cast<BlockIndex>(blocks_.size() - 1);
  }
  const BlockIndex index = unused_.back();
  unused_.pop_back();
  blocks_[index] = block;
  return index;
}

}  // namespace stalloc::plan
