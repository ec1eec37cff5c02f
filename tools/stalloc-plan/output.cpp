// SPDX-License-Identifier: Apache-2.0
#include "tools/stalloc-plan/output.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "tools/stalloc-plan/text.h"

namespace stalloc::tool {
namespace {

std::string& speaker() {
  static std::string name = "stalloc-plan";
  return name;
}

}  // namespace

void speak_as(std::string name) { speaker() = std::move(name); }

int fail(const std::string& what, int exit_code) {
  std::fprintf(stderr, "%s: %s\n", speaker().c_str(), printable(what).c_str());
  return exit_code;
}

int print(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  return written ? kExitOk : fail("cannot write to standard output");
}

bool is_standard_output(const std::string& path) {
  struct stat file {};
  struct stat own {};
  if (::stat(path.c_str(), &file) != 0 || ::fstat(STDOUT_FILENO, &own) != 0) return false;
  const bool same = file.st_dev == own.st_dev && file.st_ino == own.st_ino;
  return same && (!S_ISCHR(own.st_mode) || ::isatty(STDOUT_FILENO) != 0);
}

}  // namespace stalloc::tool
