// SPDX-License-Identifier: Apache-2.0
// The policy's parameters: set by name, and documented as they are.
#include "plan/online/online_policy.h"

#include <cstdio>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "catch.h"
#include "plan/online/growth.h"

using namespace stalloc::plan;

namespace {

std::string value_of(std::uint64_t value) {
  if (value >= std::uint64_t{1} << 20 && value % (1 << 20) == 0) return std::to_string(value >> 20) + "M";
  return std::to_string(value);
}

std::string row_of(const PolicyParameter& parameter) {
  const std::string off = parameter.off == std::uint64_t{1} << 63 ? "" : value_of(parameter.off);
  return "| `" + std::string(parameter.name) + "` | " + value_of(OnlinePolicy{}.*parameter.value) + " | " +
         parameter.unit + " | " + off + " | " + parameter.meaning + " |";
}

}  // namespace

TEST_CASE("parameters are set by name, with suffixes, or switched off") {
  OnlinePolicy policy;
  REQUIRE(set_policy("", &policy).empty());
  REQUIRE(set_policy("kept_views=7,small_bytes=64kib,searched_views=OFF,compared_pages=off", &policy).empty());
  REQUIRE(policy.kept_views == 7);
  REQUIRE(policy.small_bytes == 64 << 10);
  REQUIRE(policy.searched_views == 0);
  REQUIRE(policy.compared_pages == std::uint64_t{1} << 63);
}

TEST_CASE("what is no parameter or no value is named, and nothing is set") {
  OnlinePolicy policy;
  const std::string text = GENERATE(as<std::string>{}, "kept_views", "kept_views=", "kept_views=x", "kept_views=1X",
                                    "kept_views=-1", "held_per_handle=0", "small_bytes=99999999999T", "views=1", "=1");
  CAPTURE(text);
  REQUIRE_FALSE(set_policy("searched_views=9," + text, &policy).empty());
  REQUIRE(policy.searched_views == OnlinePolicy{}.searched_views);
}

TEST_CASE("every parameter can be switched off by a value that it accepts, and has one name") {
  std::set<std::string> names;
  for (const PolicyParameter& parameter : policy_parameters()) {
    CAPTURE(parameter.name);
    OnlinePolicy policy;
    REQUIRE(names.insert(parameter.name).second);
    REQUIRE(set_policy(std::string(parameter.name) + "=" + std::to_string(parameter.off), &policy).empty());
    REQUIRE(policy.*parameter.value == parameter.off);
    REQUIRE(OnlinePolicy{}.*parameter.value != parameter.off);
  }
}

TEST_CASE("absurd parameters still make handles that hold what is missing") {
  constexpr std::uint64_t kPage = 4096;
  const auto value = GENERATE(as<std::uint64_t>{}, 1, std::uint64_t{1} << 52, std::uint64_t{1} << 63);
  for (const PolicyParameter& parameter : policy_parameters()) {
    CAPTURE(parameter.name, value);
    OnlinePolicy policy;
    policy.*parameter.value = value;
    const Growth growth{.missing = 600 * kPage, .request = 600 * kPage, .held = 0, .most_held = 0, .coarseness = 16};
    std::uint64_t sum = 0;
    for (const std::uint64_t bytes : new_handle_sizes(policy, growth, kPage)) {
      REQUIRE(bytes % kPage == 0);
      sum += bytes;
    }
    REQUIRE(sum == 600 * kPage);
  }
}

TEST_CASE("docs/policy.md has exactly the rows of the list, word for word") {
  std::ifstream doc(POLICY_DOC);
  REQUIRE(doc.good());
  std::vector<std::string> documented;
  for (std::string line; std::getline(doc, line);) {
    if (line.rfind("| `", 0) == 0) documented.push_back(line);
  }
  std::vector<std::string> expected;
  for (const PolicyParameter& parameter : policy_parameters()) expected.push_back(row_of(parameter));
  CHECK(documented == expected);
}
