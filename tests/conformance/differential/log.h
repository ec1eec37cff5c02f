// What one actor's calls answered, in the actor's own order: nothing in it depends on when other actors made theirs.
#pragma once

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/machine.h"

namespace stalloc::conformance {

// Of one thread at a time.
class Log {
 public:
  Log(const Machine& machine, std::string who) : machine_(machine), who_(std::move(who)) {}

  void line(const std::string& text) { lines_.push_back(text); }
  // A call and its answer, which is passed on.
  CUresult answer(const std::string& call, CUresult result) {
    line(call + ": " + machine_.name(result));
    return result;
  }
  // All lines, each behind `prefix` and the actor's name.
  void write(std::FILE* to, const std::string& prefix) const {
    for (const std::string& text : lines_) std::fprintf(to, "%s %s: %s\n", prefix.c_str(), who_.c_str(), text.c_str());
  }

 private:
  const Machine& machine_;
  const std::string who_;
  std::vector<std::string> lines_;
};

}  // namespace stalloc::conformance
