// SPDX-License-Identifier: Apache-2.0
#include "tools/stalloc-plan/json.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "catch.h"

using stalloc::tool::Fixed;
using stalloc::tool::JsonWriter;

TEST_CASE("an object has its members in the order of the calls", "[tool][json]") {
  JsonWriter json;
  {
    const auto object = json.object();
    json.member("yes", true);
    json.member("largest", std::numeric_limits<std::uint64_t>::max());
    json.member("negative", -1);
    json.member("byte", std::uint8_t{65});
    json.member("ratio", Fixed{1.0 / 3});
    json.member("short", Fixed{2, 3});
    json.member("text", "a");
    json.member("none", std::optional<std::string>());
    json.member("some", std::optional<std::size_t>(7));
  }
  REQUIRE(json.take() ==
          "{\"yes\": true, \"largest\": 18446744073709551615, \"negative\": -1, \"byte\": 65, "
          "\"ratio\": 0.333333, \"short\": 2.000, \"text\": \"a\", \"none\": null, \"some\": 7}\n");
}

TEST_CASE("objects and arrays nest, empty ones too", "[tool][json]") {
  const bool is_long = GENERATE(false, true);
  JsonWriter json(is_long ? JsonWriter::Length::Long : JsonWriter::Length::Short);
  {
    const auto object = json.object();
    { const auto empty = json.array("empty"); }
    {
      const auto rows = json.array("rows");
      for (const int row : {1, 2}) {
        const auto one = json.array();
        json.element(row);
        json.element("x");
      }
    }
    {
      const auto inner = json.object("inner");
      json.column("column", std::vector<int>{1, 2, 3}, [](int value) { return 2 * value; });
      json.column("nothing", std::vector<int>());
    }
    json.member("last", false);
  }
  std::string expected =
      "{\"empty\": [],\n\"rows\": [[1, \"x\"],\n[2, \"x\"]],\n\"inner\": {\"column\": [2,4,6],\n\"nothing\": []}, "
      "\"last\": false}";
  if (!is_long) std::replace(expected.begin(), expected.end(), '\n', ' ');
  REQUIRE(json.take() == expected + "\n");
}

TEST_CASE("texts and names are escaped", "[tool][json]") {
  JsonWriter json;
  {
    const auto object = json.object();
    json.member("a\"b", std::string("\\ \n \x01 \x7f \xc3\xa9"));
  }
  REQUIRE(json.take() == "{\"a\\\"b\": \"\\\\ \\u000a \\u0001 \\u007f \xc3\xa9\"}\n");
}

TEST_CASE("a text that is no UTF-8 makes no JSON that is none", "[tool][json]") {
  JsonWriter json;
  {
    const auto object = json.object();
    json.member("a\xff", std::string("b\xfe"));
  }
  REQUIRE(json.take() == "{\"a\xef\xbf\xbd\": \"b\xef\xbf\xbd\"}\n");
}
