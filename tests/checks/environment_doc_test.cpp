// SPDX-License-Identifier: Apache-2.0
// docs/environment.md has exactly the rows of the table in interpose/base/options.def, word for word.
#include <fstream>
#include <string>
#include <vector>

#include "catch.h"
#include "interpose/base/options.h"

namespace {

std::vector<std::string> documented_rows() {
  std::ifstream doc(ENVIRONMENT_DOC);
  REQUIRE(doc.good());
  std::vector<std::string> rows;
  for (std::string line; std::getline(doc, line);) {
    if (line.rfind("| `STALLOC_", 0) == 0) rows.push_back(line);
  }
  return rows;
}

// A bar inside a cell of a Markdown table would end the cell.
std::string with_commas(std::string_view words) {
  std::string text;
  for (const char c : words) text += c == '|' ? std::string(", ") : std::string(1, c);
  return text;
}

std::string row_of(const stalloc::OptionRow& option) {
  const std::string fallback = option.fallback.empty() ? "" : "`" + std::string(option.fallback) + "`";
  return "| `" + std::string(option.variable) + "` | " + fallback + " | " + with_commas(option.accepted) + " | " +
         std::string(option.meaning) + " |";
}

}  // namespace

TEST_CASE("every variable of the option table is documented, in its words and order") {
  std::vector<std::string> expected;
  for (const stalloc::OptionRow& option : stalloc::option_table()) expected.push_back(row_of(option));
  CHECK(documented_rows() == expected);
}
