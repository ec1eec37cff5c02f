// SPDX-License-Identifier: Apache-2.0
// Preloaded behind stalloc: another library that stands in front of cuMemAlloc, and looks for the driver's by dlsym.
#include <cuda.h>
#include <dlfcn.h>

#undef cuMemAlloc
extern "C" __attribute__((visibility("default"))) CUresult cuMemAlloc_v2(CUdeviceptr* out, size_t bytes) {
  static const auto original =
      reinterpret_cast<decltype(&cuMemAlloc_v2)>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemAlloc_v2"));
  return original(out, bytes);
}
