// SPDX-License-Identifier: Apache-2.0
// Opens the CUDA driver named by argv[1], asks for its version and closes it, several times, and never initializes it:
// a program that only looks whether CUDA is there.
#include <dlfcn.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  for (int i = 0; i < 3; ++i) {
    void* driver = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (driver == nullptr) {
      std::printf("dlopen: %s\n", dlerror());
      return 1;
    }
    auto* version = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDriverGetVersion"));
    int value = 0;
    const int code = version != nullptr ? version(&value) : -1;
    std::printf("cuDriverGetVersion: %d, version %s\n", code, value > 0 ? "known" : "unknown");
    std::printf("cuMemAlloc_v2: %s\n", dlsym(driver, "cuMemAlloc_v2") != nullptr ? "there" : "absent");
    std::printf("cuNoSuchFunction: %s\n", dlsym(driver, "cuNoSuchFunction") != nullptr ? "there" : "absent");
    dlerror();
    std::printf("dlclose: %d\n", dlclose(driver));
    std::printf("everywhere: %s\n", dlsym(RTLD_DEFAULT, "cuDriverGetVersion") != nullptr ? "there" : "absent");
  }
  return 0;
}
