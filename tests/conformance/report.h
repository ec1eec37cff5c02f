// SPDX-License-Identifier: Apache-2.0
// The findings of a run. Thread-safe: checks report from their threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>

namespace stalloc::conformance {

class Report {
 public:
  // Everything that is reported until `end` belongs to this check; `end` prints how it went.
  void begin(const std::string& check);
  void end();

  // Reports a failure if `holds` is false, which CUDA promises to be true; `what` says in words what is wrong then. The
  // same words are printed once for each check.
  void expect(bool holds, const std::string& what);
  // Reports what this driver did where CUDA leaves a choice, such as an error code. It must be the same under a
  // preloaded library.
  void fact(const std::string& what, const std::string& answer);
  // The same for requests that CUDA may refuse for want of memory in one piece: a preloaded library may serve them.
  void fact_at_least(const std::string& what, const std::string& answer);
  // A number that may differ from run to run.
  void figure(const std::string& what, std::uint64_t value);

  // The run as JSON: {"checks": {name: [failures...]}, "facts": {...}, "at_least": [names of facts...],
  // "figures": {...}}.
  [[nodiscard]] std::string json() const;
  [[nodiscard]] bool passed() const;

 private:
  mutable std::mutex mutex_;
  std::string current_;
  std::chrono::steady_clock::time_point began_;
  std::map<std::string, std::set<std::string>> failures_;  // by check; empty: it passed
  std::map<std::string, std::string> facts_;
  std::set<std::string> at_least_;
  std::map<std::string, std::uint64_t> figures_;
};

}  // namespace stalloc::conformance
