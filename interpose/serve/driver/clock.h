// SPDX-License-Identifier: Apache-2.0
// The clock of the time that mapping takes.
#pragma once

#include <chrono>
#include <cstdint>

namespace stalloc::serve {

// The time from `begin` until now. Thread-safe.
inline std::uint64_t nanoseconds_since(std::chrono::steady_clock::time_point begin) noexcept {
  const auto passed = std::chrono::steady_clock::now() - begin;
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count());
}

}  // namespace stalloc::serve
