// Numbers of many rows as JSON, with an array for each column, which takes a fraction of an object for each row.
#pragma once

#include <fmt/format.h>

#include <iterator>
#include <string>

#include "plan/files/trace_file.h"

namespace stalloc::tool {

// Appends `"name": [...]` with `value(row)` of each row.
template <class Rows, class Value>
void append_column(std::string& out, const char* name, const Rows& rows, Value value) {
  fmt::format_to(std::back_inserter(out), "\"{}\": [", name);
  const char* separator = "";
  for (const auto& row : rows) {
    fmt::format_to(std::back_inserter(out), "{}{}", separator, value(row));
    separator = ",";
  }
  out += "]";
}

// Appends `"modules": [{"id", "path"}, ...], "stacks": [{"id", "frames": [[module, offset], ...]}, ...]`, frames
// innermost first.
void append_call_sites(std::string& out, const trace::Trace& trace);

}  // namespace stalloc::tool
