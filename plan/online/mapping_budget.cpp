#include "plan/online/mapping_budget.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace stalloc::plan {
namespace {

constexpr std::uint64_t kNanosecondsAMillisecond = 1'000'000;
constexpr std::uint64_t kMostAllowance = std::numeric_limits<std::int64_t>::max() / 4;
// With each such part of the allowance that is owed handles double; from half of the allowance on, so does slack.
constexpr std::int64_t kStepsPerAllowance = 8;

}  // namespace

MappingBudget::MappingBudget(const OnlinePolicy& policy)
    : share_(std::max<std::uint64_t>(policy.elapsed_per_mapping, 1)),
      allowance_(static_cast<std::int64_t>(
          std::min(policy.mapping_allowance, kMostAllowance / kNanosecondsAMillisecond) * kNanosecondsAMillisecond)),
      coarsest_(std::bit_floor(std::max<std::uint64_t>(policy.coarsest, 1))),
      widest_slack_(std::max<std::uint64_t>(policy.widest_slack, 1)),
      balance_(allowance_) {}

Overdraft MappingBudget::overdraft(const MappingTime& now) noexcept {
  const std::uint64_t gained = std::min((now.elapsed - last_.elapsed) / share_, kMostAllowance);
  const std::uint64_t paid = std::min(now.mapping - last_.mapping, kMostAllowance);
  last_ = now;
  balance_ += static_cast<std::int64_t>(gained) - static_cast<std::int64_t>(paid);
  balance_ = std::clamp(balance_, -allowance_, allowance_);
  if (balance_ >= 0) return {};
  const std::int64_t step = std::max<std::int64_t>(allowance_ / kStepsPerAllowance, 1);
  const std::int64_t steps = std::min(-balance_ / step, kStepsPerAllowance);
  const std::int64_t wider = std::max<std::int64_t>(steps - kStepsPerAllowance / 2, 0);
  return {.coarseness = std::min(std::uint64_t{2} << steps, coarsest_),
          .slack = std::min(std::uint64_t{1} << wider, widest_slack_)};
}

}  // namespace stalloc::plan
