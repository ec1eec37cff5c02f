// SPDX-License-Identifier: Apache-2.0
// Whether a plan is of the program that it is served to.
#pragma once

#include <cstdint>

namespace stalloc::serve {

// False once fewer than a tenth of the first thousand requests, or of any later hundred thousand, found a slot.
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
  static constexpr std::uint64_t kFirstWindow = 1000;     // requests after which the plan is judged for the first time
  static constexpr std::uint64_t kLaterWindow = 100'000;  // long enough for an evaluation that the plan does not know
  static constexpr std::uint64_t kLeastShare = 10;        // one request in so many must match

  std::uint64_t left_ = kFirstWindow;
  std::uint64_t window_ = kFirstWindow;
  std::uint64_t matched_ = 0;
  bool fits_ = true;
};

}  // namespace stalloc::serve
