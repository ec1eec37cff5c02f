// SPDX-License-Identifier: Apache-2.0
#include "interpose/base/options.h"

#include <cstring>
#include <map>
#include <string>

#include "catch.h"

using stalloc::LogLevel;
using stalloc::Mode;

namespace {

std::map<std::string, std::string> variables;

const char* lookup(const char* name) {
  const auto found = variables.find(name);
  return found == variables.end() ? nullptr : found->second.c_str();
}

stalloc::Options parse(std::map<std::string, std::string> set) {
  variables = std::move(set);
  return stalloc::parse_options(lookup);
}

}  // namespace

TEST_CASE("without variables every option has its default") {
  const auto options = parse({});
  CHECK(options.mode == Mode::Auto);
  CHECK(options.cross_stream == stalloc::CrossStream::Share);
  CHECK(options.trace == "trace.fb");
  CHECK(options.plan.empty());
  CHECK(options.log_level == LogLevel::Warn);
  CHECK(options.stacks);
  CHECK(options.stack_depth == 32);
  CHECK(options.refused_count == 0);
}

TEST_CASE("values are taken as the table accepts them") {
  const auto options = parse({{"STALLOC_MODE", "alloc"},
                              {"STALLOC_PLAN", "p%r.fb"},
                              {"STALLOC_LOG_LEVEL", "debug"},
                              {"STALLOC_STACKS", "off"},
                              {"STALLOC_STACK_DEPTH", "64"}});
  CHECK(options.mode == Mode::Alloc);
  CHECK(options.plan == "p%r.fb");
  CHECK(options.log_level == LogLevel::Debug);
  CHECK_FALSE(options.stacks);
  CHECK(options.stack_depth == 64);
  CHECK(options.refused_count == 0);
}

TEST_CASE("STAlloc's own words for the mode are understood") {
  CHECK(parse({{"STALLOC_MODE", "Torch"}}).mode == Mode::Torch);
  CHECK(parse({{"STALLOC_MODE", "Trace"}}).mode == Mode::Trace);
  CHECK(parse({{"STALLOC_MODE", "Alloc"}}).mode == Mode::Alloc);
}

TEST_CASE("a value that is not understood leaves the default and is named") {
  for (const auto& [name, value] : std::map<std::string, std::string>{{"STALLOC_MODE", "Alloc!"},
                                                                      {"STALLOC_STACK_DEPTH", "65"},
                                                                      {"STALLOC_STACK_DEPTH ", "1"},
                                                                      {"STALLOC_TRACE_CHUNK", "0"},
                                                                      {"STALLOC_TRACE_FLUSH_MS", "1s"},
                                                                      {"STALLOC_STACKS", "maybe"}}) {
    const bool known = name.back() != ' ';
    const auto options = parse({{name, value}});
    REQUIRE(options.refused_count == (known ? 1 : 0));
    CHECK((!known || options.refused[0].variable == name));
    CHECK(options.mode == Mode::Auto);
    CHECK(options.stack_depth == 32);
    CHECK(options.trace_chunk == 8192);
    CHECK(options.stacks);
  }
}

TEST_CASE("an empty value counts as unset") {
  const auto options = parse({{"STALLOC_MODE", ""}, {"STALLOC_TRACE", ""}});
  CHECK(options.mode == Mode::Auto);
  CHECK(options.trace == "trace.fb");
  CHECK(options.refused_count == 0);
}

TEST_CASE("the table's own defaults are accepted values") {
  for (const auto& row : stalloc::option_table()) {
    if (row.fallback.empty()) continue;
    const auto options = parse({{std::string(row.variable), std::string(row.fallback)}});
    CHECK(options.refused_count == 0);
  }
}

TEST_CASE("all values that are not understood are named, in the order of the table") {
  const auto options = parse({{"STALLOC_STACKS", "maybe"}, {"STALLOC_MODE", "fast"}, {"STALLOC_TRACE_LIMIT", "1X"}});
  REQUIRE(options.refused_count == 3);
  CHECK(options.refused[0].variable == "STALLOC_MODE");
  CHECK(options.refused[1].value == "maybe");
  CHECK(options.refused[2].accepted == "bytes, with K, M, G or T");
}

TEST_CASE("upper and lower case are the same in words, switches and sizes") {
  const auto options = parse({{"STALLOC_MODE", "DYNAMIC"}, {"STALLOC_STACKS", "Off"}, {"STALLOC_PLAN_STRICT", "TRUE"}});
  CHECK(options.mode == Mode::Dynamic);
  CHECK_FALSE(options.stacks);
  CHECK(options.plan_strict);
  for (const char* size : {"65536", "64K", "64k", "64kb", "64KiB", "65536B"}) {
    CHECK(parse({{"STALLOC_TRACE_LIMIT", size}}).trace_limit == 65536);
  }
  for (const char* size : {"64KK", "64 K", "1.5G", "K", "iB", "64iB", "-1", "99999999999T"}) {
    CHECK(parse({{"STALLOC_TRACE_LIMIT", size}}).refused_count == 1);
  }
}
