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

// A leaky bucket. It begins with the policy's allowance, gains a share of the time that passes, and pays for mapping.
// How far it is overdrawn says how much larger new handles should be: since mapping costs per handle, larger ones bring
// the cost back to the share, at the price of memory in handles that are partly used. Neither credit nor debt exceeds
// the allowance: a long time without mapping does not pay for a long time of nothing but mapping, nor does one costly
// minute make handles large for ever. Pure; not thread-safe.
class MappingBudget {
 public:
  explicit MappingBudget(const OnlinePolicy& policy);

  // By which factor new handles should be larger, a power of two; 1 within the budget.
  std::uint64_t coarseness(const MappingTime& now) noexcept;

 private:
  const std::uint64_t share_;     // mapping may take 1 / this of the time that passes
  const std::int64_t allowance_;  // ns
  const std::uint64_t coarsest_;
  MappingTime last_;
  std::int64_t balance_;  // ns
};

}  // namespace stalloc::plan
