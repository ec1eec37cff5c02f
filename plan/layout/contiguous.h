// SPDX-License-Identifier: Apache-2.0
// Layout without virtual memory management: one contiguous piece of memory and no stitched views.
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
  std::uint64_t capacity = 0;              // stop improving at this many bytes; 0: as few as possible
  StreamMode streams = StreamMode::Order;  // Isolate: no two streams share a byte
  std::function<bool()> stop = nullptr;    // true: take the best found so far; null: stop after the first rules
};

// Packs buffers into few bytes. First tries several orders (by bytes, by bytes times lifetime, by lifetime, by time;
// first and best fit). Then improves the result until `stop` returns true: by a search (packing/search.h) if there are
// at most kMostSearched buffers that live in one stretch each, otherwise by packing again with the buffers first that
// were in the way. Ends by itself at the capacity, or at the peak of live bytes rounded up to the granularity. `stop`
// can also end it inside a packing, except the first one, so that there is always a result. Deterministic as long as
// `stop` is. Pure.
inline constexpr std::size_t kMostSearched = 2048;
Packing pack_contiguous(std::span<const Buffer> buffers, const ContiguousOptions& options);

// The same for the slots of a plan. The guarantees of make_layout (layout.h) hold here, too, and every place is in the
// home view. Memory of synchronous calls shares no pages.
Layout make_contiguous_layout(const Sequence& sequence, const ContiguousOptions& options);

}  // namespace stalloc::plan
