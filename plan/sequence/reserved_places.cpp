// SPDX-License-Identifier: Apache-2.0
#include "plan/sequence/reserved_places.h"

#include "plan/sequence/live_bytes.h"

namespace stalloc::plan {

void reserve_places(Sequence& sequence) {
  if (sequence.body == 0) return;
  LiveBytes live(sequence.slots.size());
  for (std::size_t slot = 0; slot < sequence.slots.size(); ++slot) {
    for (const Range& life : lives_of(sequence, slot)) live.add(life, sequence.slots[slot].bytes);
  }
  const std::uint64_t peak = live.peak();
  for (std::size_t slot = 0; slot < sequence.prologue; ++slot) {
    SequenceSlot& entry = sequence.slots[slot];
    const Range before{0, slot};
    if (entry.bytes == 0 || entry.upper < sequence.body_end() || entry.bytes > peak - live.max_in(before)) continue;
    entry.lower = 0;
    live.add(before, entry.bytes);
  }
}

}  // namespace stalloc::plan
