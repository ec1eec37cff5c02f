// SPDX-License-Identifier: Apache-2.0
#include "tools/stalloc-plan/json.h"

namespace stalloc::tool {

// Bytes that are not ASCII are taken to be UTF-8.
void JsonWriter::append(std::string_view text) {
  text_ += '"';
  for (const char c : text) {
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
