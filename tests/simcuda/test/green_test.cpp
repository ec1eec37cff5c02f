// SPDX-License-Identifier: Apache-2.0
#include "tests/simcuda/test/machine.h"

#if CUDA_VERSION >= 12050  // has the types

using namespace simcuda_test;

namespace {

struct Green {
  CUgreenCtx handle = nullptr;
  CUcontext context = nullptr;

  explicit Green(unsigned multiprocessors = 16) {
    CUdevResource all{};
    CUdevResource part{};
    CUdevResource rest{};
    CUdevResourceDesc descriptor = nullptr;
    unsigned count = 1;
    REQUIRE(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS);
    REQUIRE(cuDevSmResourceSplitByCount(&part, &count, &all, &rest, 0, multiprocessors) == CUDA_SUCCESS);
    REQUIRE(count == 1);
    CHECK(part.sm.smCount + rest.sm.smCount == all.sm.smCount);
    REQUIRE(cuDevResourceGenerateDesc(&descriptor, &part, 1) == CUDA_SUCCESS);
    REQUIRE(cuGreenCtxCreate(&handle, descriptor, 0, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_SUCCESS);
    REQUIRE(cuCtxFromGreenCtx(&context, handle) == CUDA_SUCCESS);
  }

  [[nodiscard]] CUstream make_stream() const {
    CUstream stream = nullptr;
    REQUIRE(cuGreenCtxStreamCreate(&stream, handle, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    return stream;
  }
};

}  // namespace

TEST_CASE("a green context's streams belong to the context that is derived from it") {
  const Machine machine;
  const CUcontext primary = current_context();
  const Green green;
  CHECK(green.context != primary);
  CHECK(current_context() == primary);  // making it does not make it current
  const CUstream stream = green.make_stream();
  CUcontext context = nullptr;
  CUgreenCtx found = nullptr;
  REQUIRE(cuStreamGetCtx(stream, &context) == CUDA_SUCCESS);
  CHECK(context == green.context);
  REQUIRE(cuStreamGetCtx_v2(stream, &context, &found) == CUDA_SUCCESS);
  CHECK(context == primary);
  CHECK(found == green.handle);
  REQUIRE(cuStreamGetGreenCtx(stream, &found) == CUDA_SUCCESS);
  CHECK(found == green.handle);
  REQUIRE(cuStreamGetGreenCtx(make_stream(), &found) == CUDA_SUCCESS);
  CHECK(found == nullptr);
  CUdevResource part{};
  REQUIRE(cuGreenCtxGetDevResource(green.handle, &part, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS);
  CHECK(part.sm.smCount == 16);
  unsigned long long own = 0;
  unsigned long long others = 0;
  REQUIRE(cuCtxGetId(green.context, &own) == CUDA_SUCCESS);
  REQUIRE(cuCtxGetId(primary, &others) == CUDA_SUCCESS);
  CHECK(own != others);
  REQUIRE(cuGreenCtxDestroy(green.handle) == CUDA_SUCCESS);
}

TEST_CASE("a green context shares memory, events, kernels and waits with its primary context") {
  const Machine machine;
  const CUcontext primary = current_context();
  const Green green;
  const CUstream own = make_stream();
  const CUstream stream = green.make_stream();
  const CUevent event = make_event();
  CUdeviceptr at = 0;
  REQUIRE(cuMemAlloc(&at, 4096) == CUDA_SUCCESS);
  CUmodule module = nullptr;
  CUfunction nothing = nullptr;
  REQUIRE(cuModuleLoadData(&module, "any image") == CUDA_SUCCESS);
  REQUIRE(cuModuleGetFunction(&nothing, module, "nothing") == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(green.context) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD32Async(at, 5, 1, stream) == CUDA_SUCCESS);
  REQUIRE(cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitEvent(own, event, 0) == CUDA_SUCCESS);
  CUdeviceptr within = 0;
  REQUIRE(cuMemAllocAsync(&within, 4096, stream) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(within, stream) == CUDA_SUCCESS);
  REQUIRE(cuMemAlloc(&within, 4096) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(primary) == CUDA_SUCCESS);
  Gate gate(stream);
  CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
  gate.open();
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(cuStreamQuery(stream) == CUDA_SUCCESS);
  CHECK(read_word(at) == 5);
  REQUIRE(cuStreamDestroy(stream) == CUDA_SUCCESS);
  REQUIRE(cuGreenCtxDestroy(green.handle) == CUDA_SUCCESS);
  CHECK(cuMemFree(within) == CUDA_SUCCESS);  // belongs to the primary context
}

TEST_CASE("the end of a green context leaves the handles of its streams, which are refused") {
  const Machine machine;
  const Green green;
  const CUstream stream = green.make_stream();
  const bool by_reset = GENERATE(false, true);
  if (by_reset) {
    CUcontext context = nullptr;
    REQUIRE(cuDevicePrimaryCtxReset(0) == CUDA_SUCCESS);
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  } else {
    REQUIRE(cuGreenCtxDestroy(green.handle) == CUDA_SUCCESS);
    CHECK(cuGreenCtxDestroy(green.handle) == CUDA_ERROR_INVALID_CONTEXT);
  }
  CUdeviceptr at = 0;
  CHECK(cuStreamQuery(stream) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(cuMemAllocAsync(&at, 512, stream) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(cuStreamDestroy(stream) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  REQUIRE(cuCtxPushCurrent(green.context) == CUDA_SUCCESS);
  CHECK(cuMemAlloc(&at, 512) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  REQUIRE(cuCtxPopCurrent(nullptr) == CUDA_SUCCESS);
  CHECK(cuMemAlloc(&at, 512) == CUDA_SUCCESS);
  if (by_reset) REQUIRE(cuGreenCtxDestroy(green.handle) == CUDA_SUCCESS);
}

TEST_CASE("a green context holds its primary context") {
  REQUIRE(cuInit(0) == CUDA_SUCCESS);
  const Green green;
  unsigned flags = 0;
  int active = 0;
  REQUIRE(cuDevicePrimaryCtxGetState(0, &flags, &active) == CUDA_SUCCESS);
  CHECK(active == 1);
  REQUIRE(cuGreenCtxDestroy(green.handle) == CUDA_SUCCESS);
  REQUIRE(cuDevicePrimaryCtxGetState(0, &flags, &active) == CUDA_SUCCESS);
  CHECK(active == 0);
}

TEST_CASE("what is wrong with green contexts is said") {
  const Machine machine;
  const Green green;
  CUdevResource all{};
  CUdevResourceDesc descriptor = nullptr;
  CUgreenCtx none = nullptr;
  CUstream stream = nullptr;
  REQUIRE(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS);
  CHECK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_INVALID) == CUDA_ERROR_INVALID_RESOURCE_TYPE);
  REQUIRE(cuDevResourceGenerateDesc(&descriptor, &all, 1) == CUDA_SUCCESS);
  CHECK(cuGreenCtxCreate(&none, descriptor, 0, 0) == CUDA_ERROR_INVALID_VALUE);  // the flag is required
  CHECK(cuGreenCtxStreamCreate(&stream, green.handle, CU_STREAM_DEFAULT, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuCtxSetCurrent(reinterpret_cast<CUcontext>(green.handle)) == CUDA_ERROR_INVALID_CONTEXT);
  REQUIRE(cuGreenCtxDestroy(green.handle) == CUDA_SUCCESS);
}

#endif
