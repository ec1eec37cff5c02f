#include "plan/online/mapping_budget.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace stalloc::plan {
namespace {

constexpr std::uint64_t kNanosecondsAMillisecond = 1'000'000;
constexpr std::uint64_t kMostAllowance = std::numeric_limits<std::int64_t>::max() / 4;
constexpr std::int64_t kEighths = 8;

}  // namespace

MappingBudget::MappingBudget(const OnlinePolicy& policy)
    : share_(std::max<std::uint64_t>(policy.elapsed_per_mapping, 1)),
      allowance_(static_cast<std::int64_t>(
          std::min(policy.mapping_allowance, kMostAllowance / kNanosecondsAMillisecond) * kNanosecondsAMillisecond)),
      coarsest_(std::bit_floor(std::max<std::uint64_t>(policy.coarsest, 1))),
      widest_slack_(std::max<std::uint64_t>(policy.widest_slack, 1)),
      balance_(allowance_),
      stitching_balance_(allowance_) {}

Overdraft MappingBudget::overdraft(const MappingTime& now) noexcept {
  const std::uint64_t elapsed = now.elapsed - last_.elapsed;
  settle(elapsed, now.mapping - last_.mapping, &balance_);
  settle(elapsed, now.stitching - last_.stitching, &stitching_balance_);
  last_ = now;
  const auto owed = eighths_owed(balance_);
  if (!owed) return {};
  const auto wider = eighths_owed(stitching_balance_).value_or(0);
  return {.coarseness = std::min(std::uint64_t{2} << *owed, coarsest_),
          .slack = std::min(std::uint64_t{1} << wider, widest_slack_)};
}

std::optional<std::int64_t> MappingBudget::eighths_owed(std::int64_t balance) const noexcept {
  if (balance >= 0) return std::nullopt;
  return std::min(-balance / std::max<std::int64_t>(allowance_ / kEighths, 1), kEighths);
}

void MappingBudget::settle(std::uint64_t elapsed, std::uint64_t paid, std::int64_t* balance) const noexcept {
  const auto gained = static_cast<std::int64_t>(std::min(elapsed / share_, kMostAllowance));
  *balance += gained - static_cast<std::int64_t>(std::min(paid, kMostAllowance));
  *balance = std::clamp(*balance, -allowance_, allowance_);
}

}  // namespace stalloc::plan
