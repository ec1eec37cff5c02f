// SPDX-License-Identifier: Apache-2.0
#include "tools/stalloc-plan/output.h"

#include <cstdio>

#include "tools/stalloc-plan/text.h"

namespace stalloc::tool {

int fail(const std::string& what, int exit_code) {
  std::fprintf(stderr, "stalloc-plan: %s\n", printable(what).c_str());
  return exit_code;
}

int print(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  return written ? kExitOk : fail("cannot write to standard output");
}

}  // namespace stalloc::tool
