// What mapping may cost a program: a share of its time.
#pragma once

#include <cstdint>
#include <optional>

#include "plan/online/online_policy.h"

namespace stalloc::plan {

// In nanoseconds; none ever goes down.
struct MappingTime {
  std::uint64_t elapsed = 0;    // since any moment
  std::uint64_t mapping = 0;    // spent in creating, mapping, unmapping and giving back, since the same moment
  std::uint64_t stitching = 0;  // spent in mapping stitched views; a part of `mapping`
};

// What a program may do to map less, at the price of memory. The defaults are those of a budget that is not overdrawn.
struct Overdraft {
  std::uint64_t coarseness = 1;  // new handles are so many times larger, a power of two
  // While no more than this / `held_per_slack` of what is held is free, requests grow rather than stitch.
  std::uint64_t slack = 0;
};

// Two leaky buckets: one for all mapping, one for stitching alone. Each begins with the policy's allowance, gains a
// share of the time that passes, and pays for what is done. Neither credit nor debt exceeds the allowance: a long time
// without mapping does not pay for a long time of nothing but mapping, nor does one costly minute count for ever.
//
// What is owed for all mapping makes new handles larger: mapping costs per handle, so this costs only the memory in
// handles that are partly used. What is owed for stitching lets more and more memory be free before a request stitches,
// until the program finds holes that fit. A request stitches beyond that only where more is free than the widest slack
// and no hole fits, or where the device has no more memory. A program that gives its memory back and needs it again,
// which slack would not help, is spared the slack. Pure; not thread-safe.
class MappingBudget {
 public:
  explicit MappingBudget(const OnlinePolicy& policy);

  // `now`: as of this moment. None of its times is less than it was at the last call.
  Overdraft overdraft(const MappingTime& now) noexcept;

 private:
  // How many eighths of the allowance the bucket owes, at most 8; nothing when it is not overdrawn.
  [[nodiscard]] std::optional<std::int64_t> eighths_owed(std::int64_t balance) const noexcept;
  void settle(std::uint64_t elapsed, std::uint64_t paid, std::int64_t* balance) const noexcept;

  const std::uint64_t share_;     // mapping may take 1 / this of the time that passes
  const std::int64_t allowance_;  // ns
  const std::uint64_t coarsest_;
  const std::uint64_t widest_slack_;
  MappingTime last_;
  std::int64_t balance_;            // ns
  std::int64_t stitching_balance_;  // ns
};

}  // namespace stalloc::plan
