// SPDX-License-Identifier: Apache-2.0
// Exact repetitions in a sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stalloc::plan {

// tokens[i] == tokens[i + period] for all begin <= i < end - period, and the stretch cannot be extended;
// end - begin >= 2 * period, and no smaller period holds in it.
struct Run {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t period = 0;
};

// Returns every maximal run of at least `shortest` tokens, the longest first, among equals the smallest period first.
// O(n log n). By Lyndon words: Bannai, I, Inenaga, Nakashima, Takeda, Tsuruta, "The 'Runs' Theorem", SIAM J. Comput.
// 46(5), 2017. Windows are compared by a 61-bit hash; every returned run is then verified token by token.
std::vector<Run> find_runs(std::span<const std::uint32_t> tokens, std::size_t shortest);

}  // namespace stalloc::plan
