// SPDX-License-Identifier: Apache-2.0
// The command's output: text on standard output, errors in one line on stderr, and an exit code.
#pragma once

#include <string>

namespace stalloc::tool {

inline constexpr int kExitOk = 0;
inline constexpr int kExitBad = 1;    // bad input, or an unsound plan
inline constexpr int kExitUsage = 2;  // wrong usage

// Writes to standard output. Returns the exit code.
int print(const std::string& text);

// Prints "stalloc-plan: <what>" on stderr, in one line whatever `what` holds.
int fail(const std::string& what, int exit_code = kExitBad);

}  // namespace stalloc::tool
