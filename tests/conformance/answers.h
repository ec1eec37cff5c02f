// SPDX-License-Identifier: Apache-2.0
// The results of calls, in words that can be compared from run to run.
#pragma once

#include <string>

#include "tests/conformance/machine.h"
#include "tests/conformance/report.h"

namespace stalloc::conformance {

// The names of several calls' results, in their order.
class Answers {
 public:
  explicit Answers(const Machine& machine) : machine_(machine) {}

  // Returns the result.
  CUresult add(CUresult result) {
    add_word(machine_.name(result));
    return result;
  }
  void add_word(const std::string& word) { text_ += (text_.empty() ? "" : ", ") + word; }

  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  const Machine& machine_;
  std::string text_;
};

inline std::string yes_or_no(bool yes) { return yes ? "yes" : "no"; }

// Whether the driver has a function. If not, notes that as a fact, and the check goes on without it.
template <class Function>
bool is_there(Report& report, Function function, const std::string& name) {
  if (function != nullptr) return true;
  report.fact(name, "not there");
  return false;
}

// Whether the primary context of the first device is active.
inline std::string primary_is_active(const Machine& machine) {
  if (machine.cuda.cuDevicePrimaryCtxGetState == nullptr) return "not there";
  unsigned flags = 0;
  int active = 0;
  machine.must(machine.cuda.cuDevicePrimaryCtxGetState(0, &flags, &active), "cuDevicePrimaryCtxGetState");
  return yes_or_no(active != 0);
}

// How much of the device is free, in twentieths, so that what a driver needs for itself does not show.
inline std::string free_twentieths(const Machine& machine) {
  const double free = static_cast<double>(machine.free_bytes());
  const double total = static_cast<double>(machine.total_bytes());
  return std::to_string(static_cast<int>(free / total * 20 + 0.5)) + "/20 free";
}

}  // namespace stalloc::conformance
