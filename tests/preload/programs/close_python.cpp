// SPDX-License-Identifier: Apache-2.0
// Uses CUDA while Python's library is loaded, and after it was unloaded.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>

namespace {

bool use() {
  void* memory = nullptr;
  return cudaMalloc(&memory, 4096) == cudaSuccess && cudaFree(memory) == cudaSuccess;
}

}  // namespace

int main(int argc, char** argv) {
  void* const python = argc != 2 ? nullptr : dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (python == nullptr || !use() || dlclose(python) != 0) return 2;
  const bool is_gone = dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD) == nullptr;
  std::printf("unloaded: %s, used CUDA since: %s\n", is_gone ? "yes" : "no", use() ? "yes" : "no");
  return 0;
}
