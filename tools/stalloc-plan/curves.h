// SPDX-License-Identifier: Apache-2.0
// Live bytes and held bytes over time, in as few points as a page can draw.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "plan/plan.h"
#include "plan/problem.h"
#include "tools/stalloc-plan/json.h"
#include "tools/stalloc-plan/simulated_allocators.h"

namespace stalloc::tool {

inline constexpr std::size_t kMostPoints = 2000;

// Each point stands for some consecutive requests. It has the least and the most live bytes and the most held bytes of
// these requests, so the maximum of a curve is the maximum of the run. Not thread-safe.
class Curves {
 public:
  Curves() = default;
  explicit Curves(const plan::Problem& problem);  // `problem` has the requests that a framework's allocator gets

  // Adds the bytes that an allocator holds after `request`. `allocator` is an index into kAllocators.
  void add(std::size_t allocator, std::size_t request, std::uint64_t held_bytes);

  // Writes the points as the member "curves"; `first` of a point is the ordinal of its first request.
  void write(JsonWriter& json) const;

 private:
  [[nodiscard]] std::size_t point_of(std::size_t request) const;

  std::size_t requests_ = 0;
  std::vector<std::uint64_t> first_;
  std::vector<std::uint64_t> live_least_;
  std::vector<std::uint64_t> live_most_;
  std::array<std::vector<std::uint64_t>, kAllocators.size()> held_;
};

}  // namespace stalloc::tool
