// SPDX-License-Identifier: Apache-2.0
// The result of an operation that may fail on bad input.
#pragma once

#include <string>
#include <utility>

namespace stalloc::plan {

// A value, or one line that says what is wrong: as std::expected of C++23 with a text for the error.
template <class T>
struct Expected {
  T value{};
  std::string error;  // empty: there is a value
  [[nodiscard]] bool ok() const { return error.empty(); }

  static Expected failure(std::string what) { return Expected{{}, std::move(what)}; }
};

}  // namespace stalloc::plan
