// SPDX-License-Identifier: Apache-2.0
// The slots of a sequence as buffers that live at certain times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "plan/packing/greedy.h"
#include "plan/sequence/sequence.h"

namespace stalloc::plan {

// The buffers that may share bytes, and which slots of the sequence each is.
struct BufferGroup {
  std::vector<Buffer> buffers;
  std::vector<std::vector<std::size_t>> slots;
};

// By stream: kEveryStream for memory of synchronous calls, which shares with nothing else, and with StreamMode::Order 0
// for all other. A slot of the body that lives across its end lives at its beginning too, in the place of the
// repetition before: there its twin of the prologue lives the first time, so both are one buffer.
std::map<std::uint32_t, BufferGroup> make_buffers(const Sequence& sequence, StreamMode streams);

}  // namespace stalloc::plan
