// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

namespace stalloc::conformance {
namespace {

// All texts are the program's own or CUDA's names, so nothing in them needs escaping.
template <class Map, class Format>
std::string object(const Map& map, Format format) {
  std::string text;
  for (const auto& [name, value] : map)
    text += fmt::format("{}\"{}\": {}", text.empty() ? "" : ", ", name, format(value));
  return "{" + text + "}";
}

}  // namespace

void Report::begin(const std::string& check) {
  const std::scoped_lock lock(mutex_);
  current_ = check;
  began_ = std::chrono::steady_clock::now();
  failures_[check];
}

void Report::end() {
  const std::scoped_lock lock(mutex_);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began_;
  fmt::print("{}: {} ({:.2f} s)\n", current_, failures_[current_].empty() ? "ok" : "FAILED", took.count());
  std::fflush(stdout);
}

void Report::expect(bool holds, const std::string& what) {
  if (holds) return;
  const std::scoped_lock lock(mutex_);
  if (!failures_[current_].insert(what).second) return;
  fmt::print("  {}: {}\n", current_, what);
  std::fflush(stdout);
}

void Report::fact(const std::string& what, const std::string& answer) {
  const std::scoped_lock lock(mutex_);
  facts_[current_ + ": " + what] = answer;
}

void Report::fact_at_least(const std::string& what, const std::string& answer) {
  fact(what, answer);
  const std::scoped_lock lock(mutex_);
  at_least_.insert(current_ + ": " + what);
}

void Report::figure(const std::string& what, std::uint64_t value) {
  const std::scoped_lock lock(mutex_);
  figures_[current_ + ": " + what] = value;
}

std::string Report::json() const {
  const std::scoped_lock lock(mutex_);
  const auto quoted = [](const std::string& text) { return "\"" + text + "\""; };
  const auto list = [&](const std::set<std::string>& texts) {
    std::string all;
    for (const std::string& text : texts) all += (all.empty() ? "" : ", ") + quoted(text);
    return "[" + all + "]";
  };
  return fmt::format("{{\"checks\": {}, \"facts\": {}, \"at_least\": {}, \"figures\": {}}}", object(failures_, list),
                     object(facts_, quoted), list(at_least_),
                     object(figures_, [](std::uint64_t value) { return std::to_string(value); }));
}

bool Report::passed() const {
  const std::scoped_lock lock(mutex_);
  return std::all_of(failures_.begin(), failures_.end(), [](const auto& check) { return check.second.empty(); });
}

}  // namespace stalloc::conformance
