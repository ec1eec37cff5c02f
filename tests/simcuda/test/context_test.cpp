// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include <thread>

#include "tests/simcuda/test/machine.h"

using namespace simcuda_test;

namespace {

// The function with this exported name, as old programs find it.
template <class Function>
Function* exported(const char* symbol) {
  void* const found = dlsym(RTLD_DEFAULT, symbol);
  REQUIRE(found != nullptr);
  return reinterpret_cast<Function*>(found);
}

}  // namespace

TEST_CASE("the old forms of what ends and makes things current do the same") {
  const Machine machine;
  const CUcontext primary = current_context();
  const CUstream stream = make_stream();
  const CUevent event = make_event();
  CHECK(exported<CUresult(CUstream)>("cuStreamDestroy")(stream) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(stream) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(exported<CUresult(CUevent)>("cuEventDestroy")(event) == CUDA_SUCCESS);
  CHECK(cuEventQuery(event) == CUDA_ERROR_INVALID_HANDLE);
  CUcontext own = nullptr;
  CHECK(exported<CUresult(CUcontext*, unsigned, CUdevice)>("cuCtxCreate")(&own, 0, 0) == CUDA_SUCCESS);
  CHECK(current_context() == own);
  CUcontext popped = nullptr;
  CHECK(exported<CUresult(CUcontext*)>("cuCtxPopCurrent")(&popped) == CUDA_SUCCESS);
  CHECK(popped == own);
  CHECK(current_context() == primary);
  CHECK(exported<CUresult(CUcontext)>("cuCtxPushCurrent")(own) == CUDA_SUCCESS);
  CHECK(exported<CUresult(CUcontext)>("cuCtxDestroy")(own) == CUDA_SUCCESS);
  CHECK(current_context() == primary);
  CHECK(exported<CUresult(CUcontext)>("cuCtxDestroy")(own) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE("the old forms with addresses of 32 bits exist and fail") {
  const Machine machine;
  unsigned at = 0;
  unsigned bytes = 0;
  CHECK(exported<CUresult(unsigned*, unsigned)>("cuMemAlloc")(&at, 512) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(exported<CUresult(unsigned)>("cuMemFree")(512) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(exported<CUresult(unsigned*, unsigned*, unsigned)>("cuMemGetAddressRange")(&at, &bytes, 512) ==
        CUDA_ERROR_NOT_SUPPORTED);
  CHECK(exported<CUresult(unsigned*, unsigned*)>("cuMemGetInfo")(&at, &bytes) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(exported<CUresult(unsigned*, unsigned*, unsigned, unsigned, unsigned)>("cuMemAllocPitch")(
            &at, &bytes, 512, 1, 4) == CUDA_ERROR_NOT_SUPPORTED);
}

TEST_CASE("an old capture is a global one") {
  const Machine machine;
  const CUstream stream = make_stream();
  REQUIRE(exported<CUresult(CUstream)>("cuStreamBeginCapture")(stream) == CUDA_SUCCESS);
  CUstreamCaptureStatus status{};
  cuuint64_t id = 0;
  REQUIRE(exported<CUresult(CUstream, CUstreamCaptureStatus*, cuuint64_t*)>("cuStreamGetCaptureInfo")(
              stream, &status, &id) == CUDA_SUCCESS);
  CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CHECK(id != 0);
  CUdeviceptr at = 0;
  CHECK(cuMemAlloc(&at, 512) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUgraph graph = nullptr;
  CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_CASE("after a reset a thread whose context it was is told so, by either form, until the context is there again") {
  const Machine machine;
  const CUstream stream = make_stream();
  const CUevent event = make_event();
  CUdeviceptr plain = 0;
  REQUIRE(cuMemAlloc(&plain, 4096) == CUDA_SUCCESS);
  const bool old = GENERATE(true, false);
  const char* const symbol = old ? "cuDevicePrimaryCtxReset" : "cuDevicePrimaryCtxReset_v2";
  REQUIRE(exported<CUresult(CUdevice)>(symbol)(0) == CUDA_SUCCESS);
  CUdeviceptr at = 0;
  std::size_t free = 0;
  void* host = nullptr;
  CUstream fresh = nullptr;
  CUevent other = nullptr;
  CUmodule module = nullptr;
  CHECK(cuMemAlloc(&at, 512) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(cuMemFree(plain) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(cuMemAllocAsync(&at, 512, stream) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(cuMemAllocAsync(&at, 512, nullptr) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(cuMemFreeAsync(plain, stream) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(cuMemAllocManaged(&at, 512, CU_MEM_ATTACH_GLOBAL) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(cuMemGetInfo(&free, &free) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(cuMemHostAlloc(&host, 512, 0) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(cuStreamCreate(&fresh, 0) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(cuStreamQuery(nullptr) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(cuEventCreate(&other, 0) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(cuEventRecord(event, stream) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(cuModuleLoadData(&module, "any image") == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CUcontext context = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  CHECK(cuMemAlloc(&at, 512) == CUDA_SUCCESS);
  REQUIRE(cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS);
}

TEST_CASE("a reset ends captures, and nothing is refused for them any more") {
  const Machine machine;
  const CUstream stream = make_stream();
  const bool by_destruction = GENERATE(false, true);
  REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  if (by_destruction) {
    REQUIRE(cuStreamDestroy(stream) == CUDA_SUCCESS);
  } else {
    CUcontext context = nullptr;
    REQUIRE(cuDevicePrimaryCtxReset(0) == CUDA_SUCCESS);
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  }
  CUdeviceptr at = 0;
  CHECK(cuMemAlloc(&at, 512) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("a pool's memory outlives a reset, cuMemAlloc's does not") {
  const Machine machine;
  CUdeviceptr plain = 0;
  CUdeviceptr pooled = 0;
  REQUIRE(cuMemAlloc(&plain, 4096) == CUDA_SUCCESS);
  REQUIRE(cuMemAllocAsync(&pooled, 4096, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD32(pooled, 6, 1) == CUDA_SUCCESS);
  CUcontext context = nullptr;
  REQUIRE(cuDevicePrimaryCtxReset(0) == CUDA_SUCCESS);
  REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  CHECK(cuMemFree(plain) == CUDA_ERROR_INVALID_VALUE);
  CHECK(read_word(pooled) == 6);
  CHECK(cuMemFreeAsync(pooled, nullptr) == CUDA_SUCCESS);
}

TEST_CASE("threads that use a context while it is reset are told, and nothing is left of what they did") {
  const Machine machine;
  const CUcontext primary = current_context();
  const std::uint64_t before = free_bytes();
  std::atomic<bool> stop{false};
  std::atomic<int> odd{0};
  const auto is_known = [](CUresult result) {
    return result == CUDA_SUCCESS || result == CUDA_ERROR_CONTEXT_IS_DESTROYED || result == CUDA_ERROR_INVALID_VALUE ||
           result == CUDA_ERROR_INVALID_HANDLE;
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      if (cuCtxSetCurrent(primary) != CUDA_SUCCESS) ++odd;
      while (!stop) {
        CUdeviceptr plain = 0;
        CUdeviceptr pooled = 0;
        CUstream stream = nullptr;
        const auto note = [&](CUresult result) {
          if (!is_known(result)) ++odd;
          return result;
        };
        note(cuMemAlloc(&plain, 4096));
        note(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        if (note(cuMemAllocAsync(&pooled, 4096, CU_STREAM_PER_THREAD)) == CUDA_SUCCESS) {
          note(cuMemsetD8Async(pooled, 1, 4096, CU_STREAM_PER_THREAD));
          // A reset does not end this memory, so it is freed when there is a context again.
          while (note(cuMemFreeAsync(pooled, CU_STREAM_PER_THREAD)) != CUDA_SUCCESS) std::this_thread::yield();
        }
        note(cuMemFree(plain));
        note(cuStreamSynchronize(stream));
        note(cuStreamSynchronize(CU_STREAM_PER_THREAD));
      }
    });
  }
  for (int i = 0; i < 50; ++i) {
    CUcontext context = nullptr;
    REQUIRE(cuDevicePrimaryCtxReset(0) == CUDA_SUCCESS);
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  CHECK(odd == 0);
  REQUIRE(cuDevicePrimaryCtxReset(0) == CUDA_SUCCESS);
  CUcontext context = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  CHECK(free_bytes() == before);
}
