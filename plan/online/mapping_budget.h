// SPDX-License-Identifier: Apache-2.0
// What mapping may cost a program: a share of its time.
#pragma once

#include <cstdint>
#include <optional>

#include "plan/online/online_policy.h"

namespace stalloc::plan {

// In nanoseconds; none ever goes down.
struct MappingTime {
  std::uint64_t elapsed = 0;  // since any moment
  std::uint64_t mapping = 0;  // spent in creating, mapping, unmapping and giving back, since the same moment
};

// A leaky bucket of time. It begins with an allowance, gains a share of the time that passes, and pays for what is
// done. Neither credit nor debt exceeds the allowance: a long time without mapping does not pay for a long time of
// nothing but mapping, nor does one costly minute count forever. Pure; not thread-safe.
class LeakyBucket {
 public:
  // It gains 1 / `share` of the time that passes. The allowance is in nanoseconds.
  LeakyBucket(std::uint64_t share, std::int64_t allowance)
      : share_(share), allowance_(allowance), balance_(allowance) {}

  // In nanoseconds since the last call: the time that passed, and what is paid.
  void settle(std::uint64_t elapsed, std::uint64_t paid) noexcept;
  // How many whole eighths of the allowance are owed, at most 8; nothing when the bucket is not overdrawn.
  [[nodiscard]] std::optional<std::int64_t> eighths_owed() const noexcept;
  // How many whole eighths of the allowance are not there, at most 8.
  [[nodiscard]] std::int64_t eighths_spent() const noexcept;

 private:
  std::uint64_t share_;
  std::int64_t allowance_;
  std::int64_t balance_;
};

// What a program may do to map less, at the price of memory. The defaults are those of a budget that is not overdrawn.
struct Overdraft {
  std::uint64_t coarseness = 1;  // new handles are so many times larger, a power of two
  // Not 0: stitching should be spared. While no more than held / this is free, requests grow; otherwise small handles
  // are exchanged for larger ones.
  std::uint64_t held_per_slack = 0;
  bool keep_idle = false;  // memory that nobody needs now is not given back unasked: it would have to be mapped again
};

// Three leaky buckets: one pays for all mapping, and two for stitching alone, of which one gains what mapping should
// take and the other what stitching may take at most.
//
// What is owed for all mapping makes new handles larger, and so does what stitching has spent, before anything is owed:
// mapping costs per handle, so this costs only the memory in handles that are partly used. And while anything is owed,
// idle memory is given back only to who asks for it. What is owed for stitching tells that the handles which exist are
// too small for the program: those that are free are exchanged for larger ones. If more and more is owed all the same,
// more and more memory may be free before a request stitches, until the program finds holes that fit; and beyond
// that when stitching takes more than it may at most. A program that gives its memory back and needs it again, which
// slack would not help, is spared it. Pure; not thread-safe.
class MappingBudget {
 public:
  explicit MappingBudget(const OnlinePolicy& policy);

  // Both as of this moment, and `stitching` the part of now.mapping spent in mapping stitched views and in unmapping
  // those that make room for others, in nanoseconds. None is less than it was at the last call.
  Overdraft overdraft(const MappingTime& now, std::uint64_t stitching) noexcept;

 private:
  std::uint64_t coarsest_;
  std::uint64_t held_per_slack_;
  LeakyBucket mapping_;
  LeakyBucket stitching_;
  LeakyBucket most_stitching_;
  MappingTime last_;
  std::uint64_t last_stitching_ = 0;
};

}  // namespace stalloc::plan
