// SPDX-License-Identifier: Apache-2.0
// Uses CUDA, and opens many copies of a plugin that uses it while it is loaded. Without the runtime, the first copy's
// request is the first of the process.
#ifdef WITHOUT_RUNTIME
#include <cuda.h>
#else
#include <cuda_runtime_api.h>
#endif
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>

namespace {

bool begin() {
#ifdef WITHOUT_RUNTIME
  CUdevice device = 0;
  CUcontext context = nullptr;
  return cuInit(0) == CUDA_SUCCESS && cuDeviceGet(&device, 0) == CUDA_SUCCESS &&
         cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS && cuCtxSetCurrent(context) == CUDA_SUCCESS;
#else
  void* memory = nullptr;
  return cudaMallocAsync(&memory, 4096, nullptr) == cudaSuccess && cudaFreeAsync(memory, nullptr) == cudaSuccess;
#endif
}

}  // namespace

int main(int argc, char** argv) {
  alarm(60);  // what waits forever fails the test
  if (argc != 2 || !begin()) return 2;
  int used = 0;
  for (; used < 40; ++used) {
    const std::string copy = "./copy-" + std::to_string(used) + ".so";
    std::filesystem::copy_file(argv[1], copy);
    void* const plugin = dlopen(copy.c_str(), RTLD_NOW);
    if (plugin == nullptr) return 3;
    const auto succeeded = reinterpret_cast<bool (*)()>(dlsym(plugin, "plugin_succeeded"));
    if (succeeded == nullptr || !succeeded()) return 4;
  }
  std::printf("plugins that used CUDA: %d\n", used);
  return 0;
}
