// SPDX-License-Identifier: Apache-2.0
#include "tools/stalloc-plan/answer.h"

#include <cstdio>

namespace stalloc::tool {

int fail(const std::string& what, int exit_code) {
  std::string line = "stalloc-plan: " + what;
  for (char& c : line) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  std::fprintf(stderr, "%s\n", line.c_str());
  return exit_code;
}

int print(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  return written ? kExitOk : fail("cannot write to standard output");
}

}  // namespace stalloc::tool
