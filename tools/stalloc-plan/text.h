// SPDX-License-Identifier: Apache-2.0
// Makes texts from files and file names, which may hold any bytes, safe to print.
#pragma once

#include <string>
#include <string_view>

namespace stalloc::tool {

// Returns the text for a terminal. Each character that could control the terminal, begin a line or change the direction
// of the text, and each byte that is not UTF-8, becomes `?`.
std::string printable(std::string_view text);

// Returns the path as one word of a shell's command line, quoted if needed.
std::string shell_word(std::string_view path);

// Returns the text for JSON. Each byte that is not UTF-8 becomes U+FFFD.
std::string valid_utf8(std::string_view text);

// Returns the part of a path after its last slash.
std::string base_name(const std::string& path);

}  // namespace stalloc::tool
