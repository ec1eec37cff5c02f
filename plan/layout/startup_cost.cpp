// SPDX-License-Identifier: Apache-2.0
#include "plan/layout/startup_cost.h"

#include <algorithm>

namespace stalloc::plan {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

// Microseconds, by the size of a handle.
constexpr double kSmall = 2 * kMiB;
constexpr double kMedium = 128 * kMiB;
constexpr double kHuge = 100 * 1024 * kMiB;
constexpr double kCreateSmall = 10;
constexpr double kCreateMedium = 40;
constexpr double kCreateHuge = 211'000;
constexpr double kMap = 2;
constexpr double kAccessSmall = 20;
constexpr double kAccessMedium = 37;

double between(double at, double from, double to, double from_value, double to_value) {
  return from_value + (at - from) / (to - from) * (to_value - from_value);
}

double create_us(double bytes) {
  if (bytes > kMedium) return between(bytes, kMedium, kHuge, kCreateMedium, kCreateHuge);
  return between(std::max(bytes, kSmall), kSmall, kMedium, kCreateSmall, kCreateMedium);
}

double map_us(double bytes) {
  return kMap + between(std::clamp(bytes, kSmall, kMedium), kSmall, kMedium, kAccessSmall, kAccessMedium);
}

}  // namespace

double estimate_startup_ms(const DevicePlan& plan) {
  double us = 0;
  for (const std::uint64_t bytes : plan.handles) us += create_us(static_cast<double>(bytes));
  for (const View& view : plan.views) {
    for (const std::uint32_t handle : view.handles) us += map_us(static_cast<double>(plan.handles[handle]));
  }
  return us / 1000;
}

}  // namespace stalloc::plan
