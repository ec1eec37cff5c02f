// SPDX-License-Identifier: Apache-2.0
// The limit on the time for mapping: a share of the program's time.
#pragma once

#include <cstdint>
#include <optional>

#include "plan/online/online_policy.h"

namespace stalloc::plan {

// In nanoseconds; neither value ever decreases.
struct MappingTime {
  std::uint64_t elapsed = 0;  // since any moment
  std::uint64_t mapping = 0;  // spent in creating, mapping, unmapping and giving back, since the same moment
};

// A leaky bucket of time. It begins with an allowance, gains a share of the time that passes, and pays for mapping.
// Neither credit nor debt exceeds the allowance: a long time without mapping does not pay for a long time of nothing
// but mapping, and one expensive minute does not count forever. Pure; not thread-safe.
class LeakyBucket {
 public:
  // It gains 1 / `share` of the time that passes. The allowance is in nanoseconds.
  LeakyBucket(std::uint64_t share, std::int64_t allowance)
      : share_(share), allowance_(allowance), balance_(allowance) {}

  // Both in nanoseconds since the last call: the time that has passed, and the time that is paid.
  void settle(std::uint64_t elapsed, std::uint64_t paid) noexcept;
  // How many whole eighths of the allowance are owed, at most 8; nothing when the bucket is not overdrawn.
  [[nodiscard]] std::optional<std::int64_t> eighths_owed() const noexcept;
  // How many whole eighths of the allowance are spent, at most 8.
  [[nodiscard]] std::int64_t eighths_spent() const noexcept;

 private:
  std::uint64_t share_;
  std::int64_t allowance_;
  std::int64_t balance_;
};

// What the allocator does to map less, at the cost of memory. The defaults are for a budget that is not overdrawn.
struct Overdraft {
  std::uint64_t coarseness = 1;  // new handles are so many times larger, a power of two
  std::uint64_t bound = 1;       // and the bound on such handles is so many times higher, a power of two
  // Not 0: stitching is overdrawn. While no more than held / this is free, requests grow; otherwise small handles are
  // exchanged for larger ones.
  std::uint64_t held_per_slack = 0;
};

// Four leaky buckets. One pays for all mapping, and two for stitching alone. One of these two gains the share of time
// that mapping should take, and the other the share that stitching may take at most. The fourth has a sixteenth of the
// others' allowance and pays for all mapping since memory was first given back although nobody asked for it.
//
// Debt for all mapping makes new handles larger, and so does the credit that stitching has spent, even before anything
// is owed. The cost of mapping follows the number of handles, so larger ones cost only the memory that is lost in
// partly used handles. A bound limits that memory, but a debt that grows raises it. Debt for stitching shows that the
// existing handles are too small for the program, so free ones are exchanged for larger ones. If the debt still grows,
// more and more memory may be free before a request stitches, until the program finds holes that fit; this limit grows
// further when stitching exceeds its own maximum. A program that releases its memory and needs it again owes nothing
// for stitching, so it is not affected by this slack, which would not help it. Pure; not thread-safe.
class MappingBudget {
 public:
  explicit MappingBudget(const OnlinePolicy& policy);

  // Both as of this moment, and `stitching` the part of now.mapping spent in mapping stitched views and in unmapping
  // those that make room for others, in nanoseconds. None is less than it was at the last call.
  Overdraft overdraft(const MappingTime& now, std::uint64_t stitching) noexcept;
  // Whether idle memory may be given back although nobody asks for it; the caller then does so. False while the fourth
  // bucket is overdrawn: a program that synchronizes all the time would map its memory again and again.
  bool may_give_back(const MappingTime& now) noexcept;
  // Finding out what to give back has taken so many nanoseconds, beside the mapping.
  void pay_for_giving_back(std::uint64_t nanoseconds) noexcept { giving_back_.settle(0, nanoseconds); }

 private:
  std::uint64_t coarsest_;
  std::uint64_t held_per_slack_;
  LeakyBucket mapping_;
  LeakyBucket stitching_;
  LeakyBucket most_stitching_;
  LeakyBucket giving_back_;
  std::optional<MappingTime> last_given_back_;  // the latest call of may_give_back
  MappingTime last_;
  std::uint64_t last_stitching_ = 0;
};

}  // namespace stalloc::plan
