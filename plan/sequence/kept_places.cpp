// SPDX-License-Identifier: Apache-2.0
#include "plan/sequence/kept_places.h"

#include "plan/sequence/live_bytes.h"

namespace stalloc::plan {

void keep_places(Sequence& sequence) {
  if (sequence.body == 0) return;
  LiveBytes live(sequence.items.size());
  for (std::size_t slot = 0; slot < sequence.items.size(); ++slot) {
    for (const Range& life : lives_of(sequence, slot)) live.add(life, sequence.items[slot].bytes);
  }
  const std::uint64_t peak = live.peak();
  for (std::size_t slot = 0; slot < sequence.prologue; ++slot) {
    Item& item = sequence.items[slot];
    const Range before{0, slot};
    if (item.bytes == 0 || item.upper < sequence.body_end() || item.bytes > peak - live.most(before)) continue;
    item.lower = 0;
    live.add(before, item.bytes);
  }
}

}  // namespace stalloc::plan
