// SPDX-License-Identifier: Apache-2.0
#include "tools/stalloc-plan/json.h"

#include <fmt/format.h>

#include <iterator>

#include "tools/stalloc-plan/text.h"

namespace stalloc::tool {

void JsonWriter::append_number(std::uint64_t value) { fmt::format_to(std::back_inserter(text_), "{}", value); }
void JsonWriter::append_number(std::int64_t value) { fmt::format_to(std::back_inserter(text_), "{}", value); }
void JsonWriter::append(Fixed number) {
  fmt::format_to(std::back_inserter(text_), "{:.{}f}", number.value, number.digits);
}

void JsonWriter::append(std::string_view text) {
  text_ += '"';
  for (const char c : valid_utf8(text)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      text_ += '\\';
      text_ += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      fmt::format_to(std::back_inserter(text_), "\\u{:04x}", byte);
    } else {
      text_ += c;
    }
  }
  text_ += '"';
}

}  // namespace stalloc::tool
