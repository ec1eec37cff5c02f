// SPDX-License-Identifier: Apache-2.0
#include "plan/files/csv.h"

#include "catch.h"

using namespace stalloc;

TEST_CASE("a CSV of requests is read in the order of time") {
  const auto parsed = plan::parse_csv("id,lower,upper,size\n7,5,9,1000\n8,0,5,512\n9,5,6,0\n");
  REQUIRE(parsed.error.empty());
  const auto& requests = parsed.value.requests;
  REQUIRE(requests.size() == 3);
  CHECK(requests[0].id == 8);
  CHECK(requests[0].until == 1);  // freed at 5, before the request made at 5
  CHECK(requests[1].id == 7);
  CHECK(requests[1].until == 3);
  CHECK(requests[1].lower == 5);
  CHECK(requests[1].upper == 9);
  CHECK(requests[2].id == 9);
  CHECK(requests[2].size == 0);
  CHECK(plan::peak_live_bytes(parsed.value) == 1024);
}

TEST_CASE("columns may come in any order, with others between them") {
  const auto parsed = plan::parse_csv("\xEF\xBB\xBFsize, note,upper,lower,\"id\"\r\n\r\n4096,x,3,1,0\r\n");
  REQUIRE(parsed.error.empty());
  REQUIRE(parsed.value.requests.size() == 1);
  CHECK(parsed.value.requests[0].size == 4096);
  CHECK(parsed.value.requests[0].lower == 1);
  CHECK(parsed.value.requests[0].upper == 3);
}

TEST_CASE("a header alone is a problem without requests") {
  const auto parsed = plan::parse_csv("id,lower,upper,size");
  CHECK(parsed.error.empty());
  CHECK(parsed.value.requests.empty());
}

TEST_CASE("errors name the line") {
  const auto error = [](const char* text) { return plan::parse_csv(text).error; };
  CHECK(error("") == "not a CSV of requests: the file is empty");
  CHECK(error("0,1,2,3\n") == "line 1: the header has no column id (id,lower,upper,size)");
  CHECK(error("id,lower,upper\n") == "line 1: the header has no column size (id,lower,upper,size)");
  CHECK(error("id,lower,upper,size,id\n") == "line 1: column id is named twice");
  const std::string header = "id,lower,upper,size\n";
  const auto row = [&](const std::string& text) { return error((header + text).c_str()); };
  CHECK(row("0,1,2\n") == "line 2: fewer fields than the header names");
  CHECK(row("0,1,2,3,4\n") == "line 2: more fields than the header names");
  CHECK(row("0,1,2,3\n0,1,2,3\n") == "line 3: id 0 appears twice");
  CHECK(row("0,2,2,3\n") == "line 2: upper is not greater than lower");
  CHECK(row("0,3,2,3\n") == "line 2: upper is not greater than lower");
  CHECK(row("0,1,2,-3\n") == "line 2: size is not a whole number");
  CHECK(row("0,1,2,3.5\n") == "line 2: size is not a whole number");
  CHECK(row("0,1,2,\n") == "line 2: no size");
  CHECK(row("0,1,2,99999999999999999999\n") == "line 2: size is too large");
  CHECK(row("0,1,2,9223372036854775807\n") == "line 2: size is too large");
  CHECK(row("0,1,2,281474976710657\n") == "line 2: size is too large");
  CHECK(row("0,1,9223372036854775807,3\n") == "line 2: upper is too large");
}

TEST_CASE("a CSV may name the streams and the call stacks of its requests") {
  const auto problem = stalloc::plan::parse_csv("id,lower,upper,size,stream,stack\n0,0,2,512,0,3\n1,1,3,512,7,4\n");
  REQUIRE(problem.ok());
  REQUIRE(problem.value.requests[0].stream == 0);
  REQUIRE(problem.value.requests[1].stream == 7);
  REQUIRE(problem.value.requests[1].allocation_stream == 7);
  REQUIRE(problem.value.requests[1].free_stream == 7);
  REQUIRE(problem.value.requests[1].stack == 4);
  REQUIRE_FALSE(stalloc::plan::parse_csv("id,lower,upper,size,stream\n0,0,2,512,70000\n").ok());
  REQUIRE_FALSE(stalloc::plan::parse_csv("id,lower,upper,size,stream\n0,0,2,512,x\n").ok());
}
