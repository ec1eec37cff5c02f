// SPDX-License-Identifier: Apache-2.0
// The period with which a sequence repeats at its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace stalloc::plan {

struct Repetition {
  std::size_t period = 0;  // 0: the sequence does not repeat at its end
  std::size_t length = 0;  // of the end that has this period
};

// Of all ends of the sequence that repeat at least `times` times exactly, returns the longest, with its smallest
// period. Where a step has begun again and contains a loop, this is the step: its end is longer. O(n), by the failure
// function of Knuth, Morris and Pratt on the reversed sequence. Throws std::bad_alloc. Pre: fewer than 2^32 numbers.
Repetition find_repetition(std::span<const std::uint32_t> sequence, std::size_t times);

}  // namespace stalloc::plan
