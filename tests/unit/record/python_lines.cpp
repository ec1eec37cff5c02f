// SPDX-License-Identifier: Apache-2.0
// What interpreters of this machine have for tables is compared by python_lines_test.py.
#include "interpose/record/python_lines.h"

#include <random>
#include <vector>

#include "catch.h"

using stalloc::record::python_line;
using stalloc::record::PythonLines;
using Table = std::vector<std::uint8_t>;

TEST_CASE("pairs say how far a line reaches and how far the next one is") {
  // Two instructions on line 10, one on 12, one without a line, then 300 lines back in two steps, of which one is
  // empty.
  const Table table{4, 0, 2, 2, 2, 0x80, 0, 0x81, 2, 0x85};
  const auto line = [&](int instruction) { return python_line(table, PythonLines::Pairs, 410, instruction); };
  CHECK(line(-1) == 410);
  CHECK(line(0) == 410);
  CHECK(line(1) == 410);
  CHECK(line(2) == 412);
  CHECK(line(3) == 0);
  CHECK(line(4) == 412 - 127 - 123);
  CHECK(line(5) == 0);
}

TEST_CASE("locations have entries of many kinds") {
  const Table table{
      0x80 | 0 << 3 | 1,  0x11,                    // short, two units, the same line
      0x80 | 12 << 3 | 0, 0x01, 0x02,              // two lines on
      0x80 | 13 << 3 | 2, 0x48, 0x01,              // three units, 36 lines on: 0x48 is 8 with more to come
      0x80 | 15 << 3 | 0,                          // no line
      0x80 | 14 << 3 | 7, 0x03, 0x00, 0x01, 0x02,  // one line back, over eight units
  };
  const auto line = [&](int instruction) { return python_line(table, PythonLines::Locations, 5, instruction); };
  CHECK(line(-1) == 5);
  CHECK(line(0) == 5);
  CHECK(line(1) == 5);
  CHECK(line(2) == 7);
  CHECK(line(3) == 43);
  CHECK(line(5) == 43);
  CHECK(line(6) == 0);
  CHECK(line(7) == 42);
  CHECK(line(14) == 42);
  CHECK(line(15) == 0);
}

TEST_CASE("whatever is in a table, it is read to its end at most") {
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    Table table(random() % 40);
    for (auto& byte : table) byte = static_cast<std::uint8_t>(random());
    const auto first = static_cast<std::int32_t>(random()), instruction = static_cast<std::int32_t>(random() % 300) - 1;
    for (const auto kind : {PythonLines::Pairs, PythonLines::Locations}) {
      CHECK(python_line(table, kind, first, instruction) <= INT32_MAX);
    }
  }
}
