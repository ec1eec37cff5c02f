// SPDX-License-Identifier: Apache-2.0
// Preloaded behind stalloc: another library that stands in front of cuMemAlloc and cuMemFree. It looks for the driver's
// own by dlsym and by cuGetProcAddress, and answers a program that looks for cuMemFree by cuGetProcAddress with its
// own.
#include <cuda.h>
#include <dlfcn.h>

#include <cstring>

#undef cuMemAlloc
#undef cuMemFree
#undef cuGetProcAddress
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

extern "C" __attribute__((visibility("default"))) CUresult cuGetProcAddress_v2(const char* name, void** address,
                                                                               int version, cuuint64_t flags,
                                                                               CUdriverProcAddressQueryResult* status) {
  static const auto original =
      reinterpret_cast<decltype(&cuGetProcAddress_v2)>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuGetProcAddress_v2"));
  const CUresult result = original(name, address, version, flags, status);
  if (std::strcmp(name, "cuMemFree") == 0) *address = reinterpret_cast<void*>(&cuMemFree_v2);
  return result;
}
