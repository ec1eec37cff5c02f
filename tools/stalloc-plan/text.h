// SPDX-License-Identifier: Apache-2.0
// Texts out of files and names of files, which may hold any bytes, made fit for where they are shown.
#pragma once

#include <string>
#include <string_view>

namespace stalloc::tool {

// For a terminal: each character that could control it, begin a line or change the direction of the text is `?`, and so
// is each byte that is no UTF-8.
std::string printable(std::string_view text);

// For JSON: each byte that is no UTF-8 is U+FFFD.
std::string valid_utf8(std::string_view text);

// The part of a path behind its last slash.
std::string base_name(const std::string& path);

}  // namespace stalloc::tool
