// SPDX-License-Identifier: Apache-2.0
#include "plan/packing/buffers.h"

#include <algorithm>

namespace stalloc::plan {

std::map<std::uint32_t, BufferGroup> make_buffers(const Sequence& sequence, StreamMode streams) {
  const std::size_t slots = sequence.items.size();
  std::vector<bool> twin(slots);
  const auto in_body = [&sequence](std::size_t slot) {
    return slot >= sequence.prologue && slot < sequence.body_end();
  };
  for (std::size_t slot = sequence.prologue; slot < sequence.body_end(); ++slot) {
    const Item& item = sequence.items[slot];
    if (item.bytes > 0 && item.twin != kNone) twin[item.twin] = true;
  }
  std::map<std::uint32_t, BufferGroup> groups;
  for (std::size_t slot = 0; slot < slots; ++slot) {
    const Item& item = sequence.items[slot];
    if (item.bytes == 0 || twin[slot]) continue;
    const bool alone = item.stream == kEveryStream || streams == StreamMode::Isolate;
    BufferGroup& group = groups[alone ? item.stream : 0];
    Buffer buffer{.spans = {}, .bytes = item.bytes};
    std::vector<std::size_t> own{slot};
    const std::size_t upper = in_body(slot) ? std::max(item.upper, item.tail) : item.upper;
    if (in_body(slot) && item.twin != kNone) {
      own.push_back(item.twin);
      buffer.spans.emplace_back(item.twin, sequence.items[item.twin].upper);
    } else if (in_body(slot) && item.upper > sequence.body_end()) {
      buffer.spans.emplace_back(sequence.prologue, item.upper - sequence.body);
    }
    buffer.spans.emplace_back(item.lower, std::min(upper, slots));
    std::erase_if(buffer.spans, [](const auto& span) { return span.first >= span.second; });
    group.buffers.push_back(std::move(buffer));
    group.slots.push_back(std::move(own));
  }
  return groups;
}

}  // namespace stalloc::plan
