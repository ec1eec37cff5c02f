// SPDX-License-Identifier: Apache-2.0
// Preloaded behind stalloc: another library that stands in front of cuMemAlloc and cuMemFree. It looks for the driver's
// own by dlsym and by cuGetProcAddress.
#include <cuda.h>
#include <dlfcn.h>

#undef cuMemAlloc
#undef cuMemFree
extern "C" __attribute__((visibility("default"))) CUresult cuMemAlloc_v2(CUdeviceptr* out, size_t bytes) {
  static const auto original =
      reinterpret_cast<decltype(&cuMemAlloc_v2)>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemAlloc_v2"));
  return original(out, bytes);
}

extern "C" __attribute__((visibility("default"))) CUresult cuMemFree_v2(CUdeviceptr at) {
  using Free = decltype(&cuMemFree_v2);
  static const auto original = [] {
    using Find = CUresult (*)(const char*, void**, int, cuuint64_t);
    const auto find = reinterpret_cast<Find>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuGetProcAddress"));
    void* found = nullptr;
    find("cuMemFree", &found, 12000, CU_GET_PROC_ADDRESS_DEFAULT);
    return reinterpret_cast<Free>(found);
  }();
  return original(at);
}
