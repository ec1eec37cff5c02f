// SPDX-License-Identifier: Apache-2.0
// The command's output: its result on standard output, an error in one line on stderr, and its exit code.
#pragma once

#include <string>

namespace stalloc::tool {

inline constexpr int kExitOk = 0;
inline constexpr int kExitBad = 1;    // bad input, or an unsound plan
inline constexpr int kExitUsage = 2;  // wrong usage

// Writes the text to standard output. Returns the exit code: kExitBad if it cannot be written.
int print(const std::string& text);

// Whether a path names the file, pipe or terminal that is standard output, as /dev/stdout does.
bool is_standard_output(const std::string& path);

// From now on, errors begin with this name: that of the command which the user has typed. It is stalloc-plan at first.
void speak_as(std::string name);

// Prints "<name>: <what>" on stderr in one line, whatever bytes are in `what`. Returns `exit_code`.
int fail(const std::string& what, int exit_code = kExitBad);

}  // namespace stalloc::tool
