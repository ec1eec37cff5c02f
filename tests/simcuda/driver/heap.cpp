// SPDX-License-Identifier: Apache-2.0
#include "tests/simcuda/driver/heap.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace simcuda {
namespace {

std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

ChunkHeap::ChunkHeap(Device& device, std::uint64_t chunk_bytes, unsigned access)
    : device_(device), chunk_bytes_(chunk_bytes), access_(access) {}

CUresult ChunkHeap::allocate(std::uint64_t bytes, const Timeline* on, CUdeviceptr* address, Point* wait) {
  *address = 0;                                                        // an H200 sets this when memory runs out
  if (bytes > config().device_bytes) return CUDA_ERROR_OUT_OF_MEMORY;  // before rounding, in which sizes near 2^64 wrap
  const std::uint64_t requested = bytes;
  bytes = round_up(bytes, kUnit);
  auto range = best_fit(bytes, on, false);
  if (range == free_.end()) {
    const CUresult result = grow(bytes);
    if (result != CUDA_SUCCESS && wait == nullptr) return result;
    range = best_fit(bytes, on, result != CUDA_SUCCESS);
    if (range == free_.end()) return result;
    if (result != CUDA_SUCCESS) *wait = range->second.after;
  }
  auto [at, free] = *range;
  free_.erase(range);
  live_[at] = {bytes, requested, free.chunk};
  if (free.bytes > bytes) free_[at + bytes] = {free.bytes - bytes, free.chunk, std::move(free.after)};
  used.add(requested);
  *address = at;
  return CUDA_SUCCESS;
}

void ChunkHeap::free(CUdeviceptr address, Point after) {
  const auto live = live_.find(address);
  free_[address] = {live->second.bytes, live->second.chunk, std::move(after)};
  used.now -= live->second.requested;
  live_.erase(live);
}

void ChunkHeap::trim(std::uint64_t keep) {
  merge();
  for (auto range = free_.begin(); range != free_.end() && reserved.now > keep;) {
    const auto chunk = chunks_.find(range->first);
    const bool whole = chunk != chunks_.end() && chunk->second == range->second.bytes && range->second.after.passed();
    if (!whole) {
      ++range;
      continue;
    }
    reserved.now -= chunk->second;
    unmap(mappings().find(chunk->first));
    unreserve(chunk->first, chunk->second);
    chunks_.erase(chunk);
    range = free_.erase(range);
  }
}

void ChunkHeap::set_access(unsigned access) {
  access_ = access;
  for (const auto& [base, bytes] : chunks_) simcuda::set_access(mappings().find(base), access);
}

CUresult ChunkHeap::reserve_chunk(std::uint64_t bytes, Extent** extent) {
  if (bytes > limit_ || reserved.now > limit_ - bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  return create_extent(device_, bytes, extent);
}

CUresult ChunkHeap::grow(std::uint64_t bytes) {
  Extent* extent = nullptr;
  std::uint64_t chunk = round_up(bytes, limit_ == UINT64_MAX ? chunk_bytes_ : kPageBytes);  // a limit is used up
  CUresult result = reserve_chunk(chunk, &extent);
  if (result != CUDA_SUCCESS) {  // near the end of memory take only what is asked for, and give back what is idle
    chunk = round_up(bytes, kPageBytes);
    if (chunk <= limit_ && reserved.now > limit_ - chunk) trim(limit_ - chunk);
    result = reserve_chunk(chunk, &extent);
  }
  if (result != CUDA_SUCCESS) return result;
  const CUdeviceptr base = reserve(chunk, kPageBytes, 0);
  if (base == 0 || !map(base, extent, access_, false)) {
    if (base != 0) unreserve(base, chunk);
    drop_if_unused(extent);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  chunks_[base] = chunk;
  free_[base] = {chunk, base, {}};
  reserved.add(chunk);
  return CUDA_SUCCESS;
}

ChunkHeap::FreeRanges::iterator ChunkHeap::best_fit(std::uint64_t bytes, const Timeline* on, bool pending) {
  merge();
  auto best = free_.end();
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    const Free& free = range->second;
    const bool usable = pending || free.after.timeline == nullptr || free.after.timeline.get() == on;
    if (usable && free.bytes >= bytes && (best == free_.end() || free.bytes < best->second.bytes)) best = range;
  }
  return best;
}

// Joins neighboring ranges that wait for nothing, or for the same stream.
void ChunkHeap::merge() {
  for (auto range = free_.begin(); range != free_.end();) {
    Free& free = range->second;
    if (free.after.passed()) free.after = {};
    if (range == free_.begin()) {
      ++range;
      continue;
    }
    const auto before = std::prev(range);
    Free& left = before->second;
    const bool adjacent = before->first + left.bytes == range->first && left.chunk == free.chunk;
    if (!adjacent || left.after.timeline != free.after.timeline) {
      ++range;
      continue;
    }
    left.bytes += free.bytes;
    left.after.sequence = std::max(left.after.sequence, free.after.sequence);
    range = free_.erase(range);
  }
}

}  // namespace simcuda
