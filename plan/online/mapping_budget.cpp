// SPDX-License-Identifier: Apache-2.0
#include "plan/online/mapping_budget.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace stalloc::plan {
namespace {

constexpr std::uint64_t kNanosecondsAMillisecond = 1'000'000;
constexpr std::uint64_t kMostAllowance = std::numeric_limits<std::int64_t>::max() / 4;
constexpr std::int64_t kEighths = 8;
constexpr std::int64_t kForGivingBack = 16;      // the allowance is so many times that of giving memory back
constexpr std::int64_t kEighthsPerDoubling = 4;  // of the slack, when stitching takes more than it may at most
constexpr std::int64_t kEighthsPerBound = 2;     // until the bound on larger handles doubles

// `share` 1: there is no limit. `part`: the allowance is divided by it.
LeakyBucket full_bucket(const OnlinePolicy& policy, std::uint64_t share, std::int64_t part = 1) {
  const std::uint64_t milliseconds = share <= 1 ? kMostAllowance : policy.mapping_allowance;
  const std::uint64_t allowance =
      std::min(milliseconds, kMostAllowance / kNanosecondsAMillisecond) * kNanosecondsAMillisecond;
  return {std::max<std::uint64_t>(share, 1), static_cast<std::int64_t>(allowance) / part};
}

}  // namespace

void LeakyBucket::settle(std::uint64_t elapsed, std::uint64_t paid) noexcept {
  const auto gained = static_cast<std::int64_t>(std::min(elapsed / share_, kMostAllowance));
  balance_ += gained - static_cast<std::int64_t>(std::min(paid, kMostAllowance));
  balance_ = std::clamp(balance_, -allowance_, allowance_);
}

std::optional<std::int64_t> LeakyBucket::eighths_owed() const noexcept {
  if (balance_ >= 0) return std::nullopt;
  return std::min(-balance_ / std::max<std::int64_t>(allowance_ / kEighths, 1), kEighths);
}

std::int64_t LeakyBucket::eighths_spent() const noexcept {
  return std::min((allowance_ - balance_) / std::max<std::int64_t>(allowance_ / kEighths, 1), kEighths);
}

MappingBudget::MappingBudget(const OnlinePolicy& policy)
    : coarsest_(std::bit_floor(std::max<std::uint64_t>(policy.coarsest, 1))),
      held_per_slack_(std::clamp<std::uint64_t>(policy.held_per_slack, 1, kMostAllowance >> kEighths)),
      mapping_(full_bucket(policy, policy.elapsed_per_mapping)),
      stitching_(full_bucket(policy, policy.elapsed_per_mapping)),
      most_stitching_(full_bucket(policy, policy.elapsed_per_stitching)),
      giving_back_(full_bucket(policy, policy.elapsed_per_mapping, kForGivingBack)) {}

bool MappingBudget::may_give_back(const MappingTime& now) noexcept {
  const MappingTime last = last_given_back_.value_or(now);
  last_given_back_ = now;
  giving_back_.settle(now.elapsed - last.elapsed, now.mapping - last.mapping);
  return !giving_back_.eighths_owed();
}

Overdraft MappingBudget::overdraft(const MappingTime& now, std::uint64_t stitching) noexcept {
  const std::uint64_t elapsed = now.elapsed - last_.elapsed;
  mapping_.settle(elapsed, now.mapping - last_.mapping);
  stitching_.settle(elapsed, stitching - last_stitching_);
  most_stitching_.settle(elapsed, stitching - last_stitching_);
  last_ = now;
  last_stitching_ = stitching;
  std::uint64_t coarseness = std::uint64_t{1} << stitching_.eighths_spent();
  std::uint64_t bound = 1;
  if (const auto owed = mapping_.eighths_owed()) {
    coarseness = std::max(coarseness, std::uint64_t{2} << *owed);
    bound = std::uint64_t{1} << (*owed / kEighthsPerBound);
  }
  std::uint64_t held_per_slack = 0;
  if (const auto owed = stitching_.eighths_owed()) held_per_slack = held_per_slack_ << (kEighths - *owed);
  if (const auto owed = most_stitching_.eighths_owed()) {
    held_per_slack = std::max<std::uint64_t>(held_per_slack_ >> (*owed / kEighthsPerDoubling), 1);
  }
  return {.coarseness = std::min(coarseness, coarsest_), .bound = bound, .held_per_slack = held_per_slack};
}

}  // namespace stalloc::plan
