// SPDX-License-Identifier: Apache-2.0
// Steps of programs that map memory in each of them as long as they are not planned.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "heaps.h"
#include "programs.h"

namespace stalloc::test {

constexpr std::size_t kRequestsOfStep = 150;
constexpr std::uint64_t kSmallPage = 4096;  // few cells of the shadow, which take most of the time

// Views that were made before are neither found again nor repaired, so that a program that stitches maps memory in
// every step.
inline serve::HeapOptions forgetful_options() {
  serve::HeapOptions options = small_options();
  options.policy.small_bytes = kSmallPage / 4;
  options.policy.smallest_stitched = kSmallPage;
  options.policy.searched_views = 0;
  options.policy.handles_per_repaired = ~std::uint64_t{0};
  return options;
}

// Nothing lives from one step to the next, but for a block of `carried` bytes, if that is not 0: so many that they must
// not be held twice when the step's plan is taken up.
inline std::vector<ProgramRequest> random_step(Random& random, std::uint64_t carried = 0) {
  std::vector<ProgramRequest> step;
  while (step.size() < kRequestsOfStep) {
    const std::uint64_t largest = random() % 3 == 0 ? 12 * kSmallPage : 2 * kSmallPage;
    const std::uint64_t lifetime = std::min<std::uint64_t>(random() % 40 + 1, kRequestsOfStep - step.size());
    step.push_back({random() % largest + 1, static_cast<std::uint32_t>(lifetime), random() % 2});
  }
  if (carried != 0) step[kRequestsOfStep - 10] = {carried, 20, 0};
  return step;
}

}  // namespace stalloc::test
