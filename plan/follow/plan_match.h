// SPDX-License-Identifier: Apache-2.0
// Whether a plan belongs to the program that is served from it.
#pragma once

#include <cstdint>

namespace stalloc::plan {

// `fits` becomes false for good when fewer than a tenth of the first thousand requests, or of any later hundred
// thousand, found a slot. Not thread-safe.
class PlanMatch {
 public:
  void count(bool matched) noexcept {
    matched_ += matched;
    if (--left_ != 0) return;
    if (matched_ * kLeastShare < window_) fits_ = false;
    left_ = window_ = kLaterWindow;
    matched_ = 0;
  }
  [[nodiscard]] bool fits() const noexcept { return fits_; }

 private:
  static constexpr std::uint64_t kFirstWindow = 1000;     // requests before the first decision
  static constexpr std::uint64_t kLaterWindow = 100'000;  // longer than an evaluation that the plan does not contain
  static constexpr std::uint64_t kLeastShare = 10;        // one request in so many must match

  std::uint64_t left_ = kFirstWindow;
  std::uint64_t window_ = kFirstWindow;
  std::uint64_t matched_ = 0;
  bool fits_ = true;
};

}  // namespace stalloc::plan
