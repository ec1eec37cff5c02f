// SPDX-License-Identifier: Apache-2.0
// What a request may do about bytes that another stream freed.
#pragma once

#include <cstdint>

namespace stalloc::plan {

// Concerns bytes that the other stream may still use. Bytes whose last use is known to be complete can be used at once
// with any value. In the order of STALLOC_CROSS_STREAM's words (interpose/base/options.def).
enum class CrossStream : std::uint8_t {
  OrderThenGrow,  // wait for the other stream on the device (an event), create memory only when there is none: least
                  // memory
  GrowThenOrder,  // create memory, wait only when there is no more: least waiting
  Never,          // never wait for another stream
  Share,          // take the best place, whichever stream freed it, and wait for that free, except for small requests:
                  // least mapping, since a repetitive program soon finds its places again
};
inline constexpr CrossStream kDefaultCrossStream = CrossStream::Share;

}  // namespace stalloc::plan
