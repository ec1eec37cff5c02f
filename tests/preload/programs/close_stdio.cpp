// SPDX-License-Identifier: Apache-2.0
// Runs with descriptors 0, 1 and 2 closed: the first three files a program opens must get them, in order, so nobody
// may have opened a descriptor before main. What it found goes into the file named by argv[1].
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const int first = open("/dev/null", O_RDONLY);
  const int second = open("/dev/null", O_WRONLY);
  const int third = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC, 0600);
  dprintf(third, "%d %d %d\n", first, second, third);
  return first == 0 && second == 1 && third == 2 ? 0 : 1;
}
