// SPDX-License-Identifier: Apache-2.0
// The unit of sizes and places.
#pragma once

#include <cstdint>

namespace stalloc::plan {

// Requests are rounded up to this many bytes, never to a page: CUDA promises at least 256-byte alignment,
// PyTorch and the driver's pools use 512.
inline constexpr std::uint64_t kUnitBytes = 512;

// The smallest multiple of `unit` that is not less than `value`.
constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace stalloc::plan
