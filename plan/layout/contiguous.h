// SPDX-License-Identifier: Apache-2.0
// Layout without virtual memory tricks: one contiguous piece of memory, no stitched views. For devices without VMM.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "plan/layout/layout.h"
#include "plan/packing/greedy.h"
#include "plan/sequence/sequence.h"

namespace stalloc::plan {

struct ContiguousOptions {
  std::uint64_t granularity = 0;           // the size is a multiple of it, bytes; not 0
  std::uint64_t capacity = 0;              // bytes that are good enough; 0: as few as possible
  StreamMode streams = StreamMode::Order;  // Isolate: no two streams share a byte
  std::function<bool()> stop = nullptr;    // true: take the best found so far; null: stop after the first rules
};

// Packs buffers into few bytes: a portfolio of orders (by bytes, by bytes times lifetime, by lifetime, by time; first
// and best fit), then, until `stop`, improvement: a search (packing/search.h) where there are at most kMostSearched
// buffers that live in one stretch each, else packing again with those first that stood in the way. Stops by itself at
// the capacity, or at the peak of live bytes rounded up to the granularity; `stop` ends it inside a packing too, but
// for the first, so that there is always an answer. Deterministic as long as `stop` is. Pure.
inline constexpr std::size_t kMostSearched = 2048;
Packing pack_contiguous(std::span<const Buffer> buffers, const ContiguousOptions& options);

// The same for the slots of a plan: what make_layout (layout.h) promises holds here too, and every place is in the home
// view. Memory of synchronous calls shares no bytes.
Layout make_contiguous_layout(const Sequence& sequence, const ContiguousOptions& options);

}  // namespace stalloc::plan
