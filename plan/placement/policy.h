// What the run time and its simulation (plan/simulate/online_allocator.h) must agree on beside placement.
#pragma once

#include <cstdint>

namespace stalloc::plan {

// Pages that are grown for small requests of a stream rather than take other streams' bytes, lest two streams take the
// same bytes from each other at every request.
inline constexpr std::uint8_t kSparedPages = 4;

// A block of at most so many bytes that was freed last serves the next request of its size on its stream, without a
// look at other places. Larger ones are placed anew each time: beside the time that the device needs to fill them, that
// costs nothing.
inline constexpr std::uint64_t kLargestKept = std::uint64_t{256} << 20;

// Addresses that a stitched view has, in multiples of what it shows at first: so much of it can be lengthened.
inline constexpr std::uint64_t kViewRoom = 2;

}  // namespace stalloc::plan
