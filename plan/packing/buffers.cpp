// SPDX-License-Identifier: Apache-2.0
#include "plan/packing/buffers.h"

#include <algorithm>

namespace stalloc::plan {
namespace {

// The buffer of a slot that is not in the epilogue at the place of another, and of its twin of the prologue.
void add_buffer(const Sequence& sequence, std::size_t slot, BufferGroup& group) {
  const SequenceSlot& entry = sequence.slots[slot];
  Buffer buffer{.spans = {}, .bytes = entry.bytes};
  std::vector<std::size_t> own{slot};
  if (sequence.in_body(slot) && entry.twin != kNone) {
    own.push_back(entry.twin);
    buffer.spans.emplace_back(entry.twin, sequence.slots[entry.twin].upper);
  } else if (sequence.wraps(slot)) {
    buffer.spans.emplace_back(sequence.prologue, entry.upper - sequence.body);
  }
  const std::size_t upper = sequence.in_body(slot) ? std::max(entry.upper, entry.tail) : entry.upper;
  buffer.spans.emplace_back(entry.lower, std::min(upper, sequence.slots.size()));
  std::erase_if(buffer.spans, [](const auto& span) { return span.first >= span.second; });
  group.buffers.push_back(std::move(buffer));
  group.slots.push_back(std::move(own));
}

// Adds a slot of the epilogue to the buffer of its twin in the body. False: they need different places.
bool join(const SequenceSlot& entry, std::size_t slot, std::size_t buffer, BufferGroup& group) {
  Buffer& twin = group.buffers[buffer];
  if (twin.bytes < entry.bytes || twin.spans.empty() || twin.spans.back().second > slot) return false;
  if (slot < entry.upper) twin.spans.emplace_back(slot, entry.upper);
  group.slots[buffer].push_back(slot);
  return true;
}

}  // namespace

std::map<std::uint32_t, BufferGroup> make_buffers(const Sequence& sequence, StreamMode streams) {
  std::vector<std::size_t> buffer_of(sequence.slots.size(), kNone);  // index in its group
  std::vector<bool> has_successor(sequence.slots.size());            // twins of the prologue
  for (std::size_t slot = sequence.prologue; slot < sequence.body_end(); ++slot) {
    const SequenceSlot& entry = sequence.slots[slot];
    if (entry.bytes > 0 && entry.twin != kNone) has_successor[entry.twin] = true;
  }
  std::map<std::uint32_t, BufferGroup> groups;
  for (std::size_t slot = 0; slot < sequence.slots.size(); ++slot) {
    const SequenceSlot& entry = sequence.slots[slot];
    if (entry.bytes == 0 || has_successor[slot]) continue;
    const bool alone = entry.allocation_stream == kEveryStream || streams == StreamMode::Isolate;
    BufferGroup& group = groups[alone ? entry.allocation_stream : 0];
    const bool repeats = slot >= sequence.body_end() && entry.twin != kNone && buffer_of[entry.twin] != kNone;
    if (repeats && join(entry, slot, buffer_of[entry.twin], group)) continue;
    buffer_of[slot] = group.buffers.size();
    add_buffer(sequence, slot, group);
  }
  return groups;
}

}  // namespace stalloc::plan
