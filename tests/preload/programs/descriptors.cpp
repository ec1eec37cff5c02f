// SPDX-License-Identifier: Apache-2.0
// Says which descriptors are free under a low RLIMIT_NOFILE, and that running out of them is an ordinary error.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

int main() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 2;
  std::printf("limit %llu\n", static_cast<unsigned long long>(limit.rlim_cur));
  for (;;) {
    const int descriptor = open("/dev/null", O_RDONLY);
    if (descriptor < 0) {
      std::printf("stopped: %s\n", std::strerror(errno));
      break;
    }
    std::printf("opened %d\n", descriptor);
  }
  const void* symbol = dlsym(RTLD_DEFAULT, "printf");
  std::printf("dlsym %s\n", symbol != nullptr ? "works" : "fails");
  std::printf("dlopen without descriptors %s\n", dlopen("libutil.so.1", RTLD_NOW) != nullptr ? "works" : "fails");
  return 0;
}
