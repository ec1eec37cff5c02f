// SPDX-License-Identifier: Apache-2.0
// The policy's parameters. docs/policy.md explains each and its effect.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace stalloc::plan {

// The largest value of a parameter. Where the list says "2^63", it switches the parameter's rule off.
inline constexpr std::uint64_t kLargestParameter = std::uint64_t{1} << 63;
inline constexpr std::uint64_t kNeverRepeated = kLargestParameter;  // planned_repetitions: off

// The parameters for serving requests without a plan, on a device and in simulations alike.
struct OnlinePolicy {
#define STALLOC_POLICY(name, value, unit, off, meaning) std::uint64_t name = value;
#include "plan/online/online_policy.def"
#undef STALLOC_POLICY
  bool stitch = true;  // false: requests lie in contiguous free ranges only
};

// The description of one parameter.
struct PolicyParameter {
  const char* name;
  std::uint64_t OnlinePolicy::*value;
  const char* unit;
  std::uint64_t off;  // the value that switches its rule off
  const char* meaning;
};

// All of them, in the order of the list. Thread-safe.
[[nodiscard]] std::span<const PolicyParameter> policy_parameters() noexcept;

// Sets parameters from "name=value,name=value"; a value may be "off". Returns an empty text, or one line with the
// error; then nothing was changed. Throws std::bad_alloc.
[[nodiscard]] std::string set_policy(std::string_view text, OnlinePolicy* policy);

}  // namespace stalloc::plan
