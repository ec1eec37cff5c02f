// SPDX-License-Identifier: Apache-2.0
// Shows which memory of PyTorch's native allocator is free at its peak, and why.
//
// When the device is full, PyTorch releases the segments in which nothing is in use, and tries again. The peak is
// therefore the moment at which the other segments hold the most memory: with less, the program cannot run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/problem.h"

namespace stalloc::plan {

inline constexpr std::size_t kNoRequest = static_cast<std::size_t>(-1);

// Why a block is free at the peak and did not serve the request that was made at that moment.
enum class HoleKind : std::uint8_t {
  WholeSegment,  // nothing of its segment is in use: it can be given back
  OtherStream,   // it belongs to another stream
  OtherPool,     // it is kept for requests up to 1 MiB, or for larger ones
  TooSmall,      // of the right stream and pool, but no such block is large enough
  Remainder      // it lies beside the request, which was served from a part of it
};
inline constexpr std::size_t kHoleKinds = 5;

// A free block. `before` and `after` are the requests whose blocks lie beside it in its segment; kNoRequest: none.
struct Hole {
  std::uint64_t bytes = 0;
  std::uint64_t segment_bytes = 0;
  std::size_t segment = 0;  // counted from 0
  std::size_t before = kNoRequest;
  std::size_t after = kNoRequest;
  std::uint32_t stream = 0;
  bool small = false;  // of the pool for requests up to 1 MiB
  HoleKind kind = HoleKind::TooSmall;
};

// held_bytes = live_bytes + rounding_bytes + the sum of the holes, right after `request` was served.
struct NativePeak {
  std::size_t request = kNoRequest;  // the first one at which the most is held; kNoRequest: there are no requests
  std::uint64_t held_bytes = 0;
  std::uint64_t live_bytes = 0;
  std::uint64_t rounding_bytes = 0;  // of blocks in use beyond their requests: they are not split to the last byte
  std::size_t segments = 0;
  std::vector<Hole> holes;  // the largest first
};

// Simulates PyTorch's native allocator as simulate_caching() does. Pure.
NativePeak find_native_peak(const Problem& problem);

}  // namespace stalloc::plan
