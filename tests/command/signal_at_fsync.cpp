// SPDX-License-Identifier: Apache-2.0
// Preloaded into a program: the signal of the number in SIGNAL_AT_FSYNC arrives while the program makes a file durable.
#include <unistd.h>

#include <csignal>
#include <cstdlib>

extern "C" __attribute__((visibility("default"))) int fsync(int) {
  if (const char* number = std::getenv("SIGNAL_AT_FSYNC")) (void)::kill(::getpid(), std::atoi(number));
  return 0;
}
