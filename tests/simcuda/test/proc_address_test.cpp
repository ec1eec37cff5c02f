// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include "tests/simcuda/test/machine.h"

namespace {

void* find(const char* name, int version, cuuint64_t flags, CUresult expected = CUDA_SUCCESS) {
  void* function = nullptr;
  CHECK(cuGetProcAddress_v2(name, &function, version, flags, nullptr) == expected);
  return function;
}

void* exported(const char* symbol) { return dlsym(RTLD_DEFAULT, symbol); }

}  // namespace

TEST_CASE("a base name finds the form of the asked version and default-stream mode") {
  CHECK(find("cuMemAlloc", 12000, 0) == exported("cuMemAlloc_v2"));
  CHECK(find("cuMemAllocAsync", 12000, CU_GET_PROC_ADDRESS_LEGACY_STREAM) == exported("cuMemAllocAsync"));
  CHECK(find("cuMemAllocAsync", 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) ==
        exported("cuMemAllocAsync_ptsz"));
  CHECK(find("cuMemcpyHtoD", 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) == exported("cuMemcpyHtoD_v2_ptds"));
  // Functions without a stream have one form for both modes.
  CHECK(find("cuMemAlloc", 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) == exported("cuMemAlloc_v2"));
  CHECK(find("cuGetProcAddress", 11030, 0) == exported("cuGetProcAddress"));
  CHECK(find("cuGetProcAddress", 12000, 0) == exported("cuGetProcAddress_v2"));
}

TEST_CASE("what cannot be found says why") {
  void* function = nullptr;
  CUdriverProcAddressQueryResult status{};
  CHECK(cuGetProcAddress_v2("cuMemAllocAsync", &function, 11000, 0, &status) == CUDA_ERROR_NOT_FOUND);
  CHECK(status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  CHECK(function == nullptr);
  CHECK(cuGetProcAddress_v2("cuNoSuchThing", &function, 12000, 0, &status) == CUDA_ERROR_NOT_FOUND);
  CHECK(status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  CHECK(cuGetProcAddress_v2("cuMemAlloc_v2", &function, 12000, 0, &status) == CUDA_ERROR_NOT_FOUND);
}
