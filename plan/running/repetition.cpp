// SPDX-License-Identifier: Apache-2.0
#include "plan/running/repetition.h"

#include <vector>

namespace stalloc::plan {

Repetition find_repetition(std::span<const std::uint32_t> sequence, std::size_t times) {
  const std::size_t size = sequence.size();
  const auto reversed = [&](std::size_t i) { return sequence[size - 1 - i]; };
  // failure[n]: of the first n reversed numbers, the longest proper beginning that is also their end.
  std::vector<std::uint32_t> failure(size + 1);
  Repetition found;
  std::uint32_t border = 0;
  for (std::size_t i = 1; i < size; ++i) {
    while (border > 0 && reversed(i) != reversed(border)) border = failure[border];
    if (reversed(i) == reversed(border)) ++border;
    failure[i + 1] = border;
    const std::size_t length = i + 1;
    const std::size_t period = length - border;
    if (period * times <= length) found = {period, length};
  }
  return found;
}

}  // namespace stalloc::plan
