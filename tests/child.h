// SPDX-License-Identifier: Apache-2.0
// What a test runs in a child of fork.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace stalloc::test {

// Runs `check` in a child process, since it changes what cannot be undone: limits, signals, descriptors, or what a
// process remembers. Returns its result; false, too, when the child crashes or takes more than 60 seconds. So a child
// that waits forever, as one of a process with several threads may, fails the test and is not left behind.
inline bool holds_in_child(const std::function<bool()>& check) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(check() ? 0 : 1);
  }
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace stalloc::test
