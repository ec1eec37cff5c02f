// SPDX-License-Identifier: Apache-2.0
// Packs long-lived slots before the sweep, so that short-lived ones find long gaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "plan/placement/free_space.h"
#include "plan/sequence/sequence.h"

namespace stalloc::plan {

inline constexpr std::uint64_t kNotPacked = ~std::uint64_t{0};
// Packing takes up to the square of the number of slots that are packed.
inline constexpr std::size_t kMostPacked = 8192;

struct Packed {
  std::vector<std::uint64_t> offsets;  // of each slot in the home view, or kNotPacked
  // For each stretch of time in which a packed slot lives: when it begins, and the slot's bytes. In the order of time.
  std::vector<std::pair<std::size_t, Range>> lives;
};

// The order of packing: the longest-lived first, the last freed first, or the largest first.
enum class PackFirst : std::uint8_t { Longest, Last, Largest };

// Packs every slot that lives for 16 requests or more, or across the body's end, into `room`. Slots that fill whole
// pages come first, and each is placed at the lowest place that is free during its lifetime. Empty if they do not fit,
// if there are more than `most`, or if requests are made on several streams, which a packing would mix. Memory of
// synchronous calls is left out. Pure.
std::optional<Packed> pack_long_lived(const Sequence& sequence, Range room, std::uint64_t page, PackFirst first,
                                      std::size_t most = kMostPacked);

}  // namespace stalloc::plan
