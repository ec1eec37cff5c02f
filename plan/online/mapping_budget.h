// What mapping may cost a program: a share of its time.
#pragma once

#include <cstdint>

#include "plan/online/online_policy.h"

namespace stalloc::plan {

// In nanoseconds; neither ever goes down.
struct MappingTime {
  std::uint64_t elapsed = 0;  // since some moment
  std::uint64_t mapping = 0;  // spent in creating, mapping, unmapping and giving back, since the same moment
};

// What a program may do to map less, at the price of memory. The defaults are those of a budget that is not overdrawn.
struct Overdraft {
  std::uint64_t coarseness = 1;  // new handles are so many times larger, a power of two
  // While no more than this / `held_per_slack` of what is held is free, requests grow rather than stitch.
  std::uint64_t slack = 0;
};

// A leaky bucket. It begins with the policy's allowance, gains a share of the time that passes, and pays for mapping.
// What it is overdrawn by says what may be done to map less. First new handles become larger: mapping costs per handle,
// so this costs only the memory in handles that are partly used. When half of the allowance is owed and that was not
// enough, more and more memory may be free before a request stitches, until the program finds holes that fit. So a
// program that stitching does not suit pays for mapping at most twice the allowance and the share of its time, as long
// as the device has memory. Neither credit nor debt exceeds the allowance: a long time without mapping does not pay for
// a long time with nothing else, nor does one costly minute make handles large for ever. Pure; not thread-safe.
class MappingBudget {
 public:
  explicit MappingBudget(const OnlinePolicy& policy);

  // `now`: as of this moment. Both of its times are at least those of the last call.
  Overdraft overdraft(const MappingTime& now) noexcept;

 private:
  const std::uint64_t share_;     // mapping may take 1 / this of the time that passes
  const std::int64_t allowance_;  // ns
  const std::uint64_t coarsest_;
  const std::uint64_t widest_slack_;
  MappingTime last_;
  std::int64_t balance_;  // ns
};

}  // namespace stalloc::plan
