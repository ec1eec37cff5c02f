// SPDX-License-Identifier: Apache-2.0
// Prints the host time of an allocation and free of a tensor. On simcuda it is that of the allocators alone.
#include <chrono>

#include "tests/torch/pytorch.h"

namespace stalloc::torch_test {

CHECK_OF_DOOR(cost_of_an_allocation_and_free) {
  const On on(make_stream());
  for (const std::size_t bytes : {std::size_t{1} << 10, kMiB, 64 * kMiB}) {
    constexpr int kPairs = 20000;
    double best = 1e9;
    for (int round = 0; round < 5; ++round) {
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < kPairs; ++i) (void)allocator().allocate(bytes);
      const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - begin;
      best = std::min(best, spent.count() / kPairs);
    }
    std::printf("%zu KiB: %.0f ns\n", bytes >> 10, best);
  }
}

}  // namespace stalloc::torch_test
