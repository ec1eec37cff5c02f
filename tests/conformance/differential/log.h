// SPDX-License-Identifier: Apache-2.0
// The answers to one actor's calls, in the actor's own order. Nothing in the log depends on when other actors made
// their calls.
#pragma once

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/machine.h"

namespace stalloc::conformance {

// Not thread-safe.
class Log {
 public:
  Log(const Machine& machine, std::string who) : machine_(machine), who_(std::move(who)) {}

  void line(const std::string& text) { lines_.push_back(text); }
  // Logs a call and its answer, and returns the answer.
  CUresult answer(const std::string& call, CUresult result) {
    line(call + ": " + machine_.name(result));
    return result;
  }
  // Writes all lines, each after `prefix` and the actor's name.
  void write(std::FILE* to, const std::string& prefix) const {
    for (const std::string& text : lines_) std::fprintf(to, "%s %s: %s\n", prefix.c_str(), who_.c_str(), text.c_str());
  }

 private:
  const Machine& machine_;
  const std::string who_;
  std::vector<std::string> lines_;
};

}  // namespace stalloc::conformance
