// SPDX-License-Identifier: Apache-2.0
// A program beside other libraries: `guests driver` calls the driver, `guests plugin FILE` loads and unloads a plugin
// (plugin.cpp) twice. Prints what happens.
#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

namespace {

int call_driver() {
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUdeviceptr at = 0;
  const bool done = cuInit(0) == CUDA_SUCCESS && cuDeviceGet(&device, 0) == CUDA_SUCCESS &&
                    cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS &&
                    cuCtxSetCurrent(context) == CUDA_SUCCESS && cuMemAlloc(&at, 1 << 20) == CUDA_SUCCESS &&
                    cuMemFree(at) == CUDA_SUCCESS;
  std::puts(done ? "allocated and freed" : "failed");
  return done ? 0 : 1;
}

int load_twice(const char* file) {
  for (int i = 0; i < 2; ++i) {
    void* plugin = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (plugin == nullptr) return std::puts(dlerror()), 1;
    const auto work = reinterpret_cast<int (*)()>(dlsym(plugin, "work"));
    std::printf("work: %d\n", work());
    dlclose(plugin);
  }
  std::puts("done");
  return 0;
}

}  // namespace

int main(int count, char** words) {
  if (count == 3 && std::strcmp(words[1], "plugin") == 0) return load_twice(words[2]);
  return call_driver();
}
