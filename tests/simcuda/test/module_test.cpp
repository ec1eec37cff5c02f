// SPDX-License-Identifier: Apache-2.0
#include "tests/simcuda/test/machine.h"

using namespace simcuda_test;

namespace {

struct Loaded {
  CUmodule module = nullptr;

  Loaded() { REQUIRE(cuModuleLoadData(&module, "any image") == CUDA_SUCCESS); }
  [[nodiscard]] CUfunction function(const char* name) const {
    CUfunction found = nullptr;
    REQUIRE(cuModuleGetFunction(&found, module, name) == CUDA_SUCCESS);
    return found;
  }
};

CUresult launch(CUfunction function, CUstream stream, void** parameters = nullptr) {
  return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
}

}  // namespace

TEST_CASE("a module takes memory until it is unloaded, or its context ends") {
  const Machine machine;
  const std::uint64_t before = free_bytes();
  const Loaded first;
  const Loaded second;
  CHECK(free_bytes() == before - 2 * kPage);
  const CUfunction function = first.function("anything");
  REQUIRE(launch(function, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuModuleUnload(first.module) == CUDA_SUCCESS);
  CHECK(free_bytes() == before - kPage);
  CHECK(cuModuleUnload(first.module) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(launch(function, nullptr) == CUDA_ERROR_INVALID_HANDLE);
  REQUIRE(cuDevicePrimaryCtxReset(0) == CUDA_SUCCESS);
  CUcontext context = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  CHECK(free_bytes() == before);
}

TEST_CASE("kernels fill and copy in stream order, with the parameters of their launch") {
  const Machine machine;
  const Loaded loaded;
  const CUstream stream = make_stream();
  CUdeviceptr at = 0;
  REQUIRE(cuMemAlloc(&at, 8192) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD8(at, 0, 8192) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CUdeviceptr to = at + 4096;
  unsigned value = 77;
  unsigned long long words = 16;
  unsigned long long bytes = 64;
  void* fill[] = {&at, &value, &words};
  void* copy[] = {&to, &at, &bytes};
  {
    Gate gate(stream);
    REQUIRE(launch(loaded.function("simcuda_fill"), stream, fill) == CUDA_SUCCESS);
    REQUIRE(launch(loaded.function("simcuda_copy"), stream, copy) == CUDA_SUCCESS);
    value = 78;
    CHECK(read_word(at) == 0);
  }
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(read_word(at + 60) == 77);
  CHECK(read_word(to + 60) == 77);
  CHECK(read_word(to + 64) == 0);
}

TEST_CASE("a launch that cannot be is refused, and breaks nothing") {
  const Machine machine;
  const Loaded loaded;
  const CUfunction function = loaded.function("anything");
  CHECK(cuLaunchKernel(function, 0, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuLaunchKernel(function, 1, 1, 1, 1025, 1, 1, 0, nullptr, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(launch(nullptr, nullptr) == CUDA_ERROR_INVALID_HANDLE);
  {
    const Peer peer;
    CHECK(launch(function, nullptr) == CUDA_ERROR_INVALID_HANDLE);  // of another context
  }
  CUmodule none = nullptr;
  CHECK(cuModuleLoadData(&none, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("a kernel that touches what it may not breaks its context") {
  const Machine machine;
  const Loaded loaded;
  CUdeviceptr nowhere = 0x7654321000;
  unsigned value = 1;
  unsigned long long words = 1;
  void* fill[] = {&nowhere, &value, &words};
  const bool outright = GENERATE(true, false);
  const char* const name = outright ? "simcuda_fault" : "simcuda_fill";
  REQUIRE(launch(loaded.function(name), nullptr, fill) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
}
