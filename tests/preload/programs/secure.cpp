// SPDX-License-Identifier: Apache-2.0
// Says whether the loader runs it in secure mode (set-user-ID), and who it is.
#include <sys/auxv.h>
#include <unistd.h>

#include <cstdio>

int main() {
  std::printf("secure %lu, own identity %d\n", getauxval(AT_SECURE), getuid() == geteuid());
  return 0;
}
