// SPDX-License-Identifier: Apache-2.0
// Opens a plugin that uses CUDA in a thread of its own, and closes it again.
#ifdef WITHOUT_RUNTIME
#include <cuda.h>
#else
#include <cuda_runtime_api.h>
#endif
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>

int main(int argc, char** argv) {
  alarm(60);  // what waits forever fails the test
#ifdef WITHOUT_RUNTIME
  if (argc != 2 || cuInit(0) != CUDA_SUCCESS) return 2;
#else
  void* memory = nullptr;
  if (argc != 2 || cudaMalloc(&memory, 4096) != cudaSuccess || cudaFree(memory) != cudaSuccess) return 2;
#endif
  void* const plugin = dlopen(argv[1], RTLD_NOW);
  if (plugin == nullptr) return 3;
  const auto use = reinterpret_cast<int (*)()>(dlsym(plugin, "use_plugin"));
  if (use == nullptr || use() != 0) return 4;
  dlclose(plugin);
  const bool gone = dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD) == nullptr;
  std::printf("the plugin is closed: %s\n", gone ? "yes" : "no");
  return 0;
}
