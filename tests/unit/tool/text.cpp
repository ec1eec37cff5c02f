// SPDX-License-Identifier: Apache-2.0
#include "tools/stalloc-plan/text.h"

#include <string>

#include "catch.h"

using stalloc::tool::printable;
using stalloc::tool::valid_utf8;

TEST_CASE("a text that is shown cannot control the terminal", "[tool][text]") {
  CHECK(printable("train.py \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80") ==
        "train.py \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");
  CHECK(printable("a\x1b[31mb\nc\rd\x7f") == "a?[31mb?c?d?");
  CHECK(printable(std::string_view("a\0b", 3)) == "a?b");
  CHECK(printable("\xc2\x9b"
                  "31m") == "?31m");  // a control character of one code point, two bytes
  CHECK(printable("\xe2\x80\xae"
                  "txt.exe") == "?txt.exe");  // right to left from here
}

TEST_CASE("what is no UTF-8 is replaced, byte by byte", "[tool][text]") {
  const std::string lost = "\xef\xbf\xbd";
  CHECK(valid_utf8("b\xff.fb") == "b" + lost + ".fb");
  CHECK(valid_utf8("\xc3") == lost);
  CHECK(valid_utf8("\xe2\x82x") == lost + lost + "x");
  CHECK(valid_utf8("\xc0\x80") == lost + lost);             // longer than need be
  CHECK(valid_utf8("\xed\xa0\x80") == lost + lost + lost);  // half of a surrogate pair
  CHECK(valid_utf8("\xf4\x90\x80\x80") == lost + lost + lost + lost);
  CHECK(valid_utf8("\n\xc3\xa9") == "\n\xc3\xa9");
  CHECK(printable("b\xff") == "b?");
}
