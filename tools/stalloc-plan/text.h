// SPDX-License-Identifier: Apache-2.0
// Parts of what is printed: texts from files and file names, which may hold any bytes, and numbers with their nouns.
#pragma once

#include <cstdint>
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

// Returns a number with its noun: "1 request", "2 requests".
std::string counted(std::uint64_t count, std::string_view noun);

// Returns the part of a path after its last slash.
std::string base_name(const std::string& path);

}  // namespace stalloc::tool
