// SPDX-License-Identifier: Apache-2.0
// A plugin that a program loads, uses and unloads.
#include <cuda_runtime_api.h>

#include <cstdio>

namespace {

struct Lifetime {
  Lifetime() { std::puts("loaded"); }
  ~Lifetime() { std::puts("unloaded"); }
  Lifetime(const Lifetime&) = delete;
  Lifetime& operator=(const Lifetime&) = delete;
};
const Lifetime lifetime;

}  // namespace

extern "C" __attribute__((visibility("default"))) int work() {
  void* memory = nullptr;
  return static_cast<int>(cudaMalloc(&memory, 1 << 20)) + static_cast<int>(cudaFree(memory));
}
