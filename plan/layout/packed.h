// What lives long, packed ahead of the sweep, so that what lives shortly finds long gaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "plan/placement/free_space.h"
#include "plan/steps/sequence.h"

namespace stalloc::plan {

inline constexpr std::uint64_t kNotPacked = ~std::uint64_t{0};

struct Packed {
  std::vector<std::uint64_t> offsets;                // of each slot in the home view, or kNotPacked
  std::vector<std::pair<std::size_t, Range>> lives;  // when each life of a packed slot begins, ascending, and its bytes
};

// Which goes first: the longest-lived, the one that is freed last, or the largest.
enum class PackFirst : std::uint8_t { Longest, Last, Largest };

// Packs every slot that lives for 16 requests or more, or across the body's end, into `room`: what fills whole pages
// ahead of the rest, each at the lowest place that is free all its life. Nothing where that does not fit, where there
// are too many for trying it, or where requests are made on several streams, which a packing would mix. Memory of
// synchronous calls is left out. Pure.
std::optional<Packed> pack_long_lived(const Sequence& sequence, Range room, std::uint64_t page, PackFirst first);

}  // namespace stalloc::plan
