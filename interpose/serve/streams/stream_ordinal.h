// SPDX-License-Identifier: Apache-2.0
// The numbers by which a heap names its streams, and by which bytes are marked as freed.
#pragma once

#include <cstdint>

namespace stalloc::serve {

// The number of a stream in one heap, from 1 to kMaxStreams. Where bytes are marked, kNoStream means that no stream may
// still use them; where bytes are requested, that every stream may use them at once (plan::kAnyStream).
using StreamOrdinal = std::uint8_t;
inline constexpr StreamOrdinal kNoStream = 0;
inline constexpr StreamOrdinal kMaxStreams = 200;
// Which stream freed bytes: an ordinal, or one of the larger numbers that shared_frees.h defines.
using FreeMark = StreamOrdinal;
inline constexpr FreeMark kEveryStreamMark = 254;  // each stream may still use the bytes
inline constexpr FreeMark kMixed = 255;            // of bytes with several marks

}  // namespace stalloc::serve
