// SPDX-License-Identifier: Apache-2.0
#include "plan/packing/buffers.h"

#include <algorithm>

namespace stalloc::plan {

std::map<std::uint32_t, BufferGroup> make_buffers(const Sequence& sequence, StreamMode streams) {
  const std::size_t slots = sequence.slots.size();
  std::vector<bool> twin(slots);
  const auto in_body = [&sequence](std::size_t slot) {
    return slot >= sequence.prologue && slot < sequence.body_end();
  };
  for (std::size_t slot = sequence.prologue; slot < sequence.body_end(); ++slot) {
    const SequenceSlot& entry = sequence.slots[slot];
    if (entry.bytes > 0 && entry.twin != kNone) twin[entry.twin] = true;
  }
  std::map<std::uint32_t, BufferGroup> groups;
  for (std::size_t slot = 0; slot < slots; ++slot) {
    const SequenceSlot& entry = sequence.slots[slot];
    if (entry.bytes == 0 || twin[slot]) continue;
    const bool alone = entry.allocation_stream == kEveryStream || streams == StreamMode::Isolate;
    BufferGroup& group = groups[alone ? entry.allocation_stream : 0];
    Buffer buffer{.spans = {}, .bytes = entry.bytes};
    std::vector<std::size_t> own{slot};
    const std::size_t upper = in_body(slot) ? std::max(entry.upper, entry.tail) : entry.upper;
    if (in_body(slot) && entry.twin != kNone) {
      own.push_back(entry.twin);
      buffer.spans.emplace_back(entry.twin, sequence.slots[entry.twin].upper);
    } else if (in_body(slot) && entry.upper > sequence.body_end()) {
      buffer.spans.emplace_back(sequence.prologue, entry.upper - sequence.body);
    }
    buffer.spans.emplace_back(entry.lower, std::min(upper, slots));
    std::erase_if(buffer.spans, [](const auto& span) { return span.first >= span.second; });
    group.buffers.push_back(std::move(buffer));
    group.slots.push_back(std::move(own));
  }
  return groups;
}

}  // namespace stalloc::plan
