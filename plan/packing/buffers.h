// SPDX-License-Identifier: Apache-2.0
// Turns the slots of a sequence into buffers with lifetimes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "plan/packing/greedy.h"
#include "plan/sequence/sequence.h"

namespace stalloc::plan {

// Buffers that may share bytes, and the slots of the sequence that belong to each.
struct BufferGroup {
  std::vector<Buffer> buffers;
  std::vector<std::vector<std::size_t>> slots;
};

// Returns the groups by stream: kEveryStream for memory of synchronous calls, which shares bytes with no other, and
// with StreamMode::Order 0 for all other memory. A slot that lives across the body's end is also live at the body's
// beginning, where the previous repetition holds its place. In the first repetition its twin of the prologue is live
// there, so both are one buffer. So are a slot of the epilogue and its twin of the body, unless they live at once.
std::map<std::uint32_t, BufferGroup> make_buffers(const Sequence& sequence, StreamMode streams);

}  // namespace stalloc::plan
