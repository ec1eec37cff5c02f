// SPDX-License-Identifier: Apache-2.0
// Runs numbered pieces of work from several threads, one at a time and in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace stalloc::replay {

// Piece i is run as `work(i)` in thread `threads[i]` (below `count`), after piece i - 1. Ends at the first that returns
// false, and returns false then.
bool take_turns(const std::vector<std::uint32_t>& threads, std::uint32_t count,
                const std::function<bool(std::size_t)>& work);

}  // namespace stalloc::replay
