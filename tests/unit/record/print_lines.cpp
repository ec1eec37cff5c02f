// SPDX-License-Identifier: Apache-2.0
// Prints the lines of instructions, for python_lines_test.py. Each line of the input is one code object: `pairs` or
// `locations`, its first line, how many instructions, and its table in hexadecimal digits ("-": it is empty). Each line
// of the output has the lines of its instructions.
#include <iostream>
#include <string>
#include <vector>

#include "interpose/record/python_lines.h"

int main() {
  std::ios::sync_with_stdio(false);
  std::string kind, digits, output;
  std::int32_t first_line = 0, count = 0;
  while (std::cin >> kind >> first_line >> count >> digits) {
    std::vector<std::uint8_t> table;
    for (std::size_t at = 0; at + 1 < digits.size(); at += 2) {
      table.push_back(static_cast<std::uint8_t>(std::stoul(digits.substr(at, 2), nullptr, 16)));
    }
    const auto lines = kind == "pairs" ? stalloc::record::PythonLines::Pairs : stalloc::record::PythonLines::Locations;
    output.clear();
    for (std::int32_t i = 0; i < count; ++i) {
      output += std::to_string(stalloc::record::python_line(table, lines, first_line, i)) + ' ';
    }
    std::cout << output << '\n';
  }
}
