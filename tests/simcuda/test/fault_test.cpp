// SPDX-License-Identifier: Apache-2.0
// A context that is broken by a fault: what fails from then on, what still answers, and how it ends.
#include <cstring>

#include "tests/simcuda/test/machine.h"

using namespace simcuda_test;

namespace {

void break_context(CUstream stream) {
  CUmodule module = nullptr;
  CUfunction fault = nullptr;
  REQUIRE(cuModuleLoadData(&module, "any image") == CUDA_SUCCESS);
  REQUIRE(cuModuleGetFunction(&fault, module, "simcuda_fault") == CUDA_SUCCESS);
  REQUIRE(cuLaunchKernel(fault, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr) == CUDA_SUCCESS);
}

// What a program has when its context breaks.
struct Things {
  CUstream stream = make_stream();
  CUevent event = make_event();
  CUdeviceptr plain = 0;
  CUdeviceptr pooled = 0;
  void* host = nullptr;

  Things() {
    REQUIRE(cuMemAlloc(&plain, 4096) == CUDA_SUCCESS);
    REQUIRE(cuMemAllocAsync(&pooled, 4096, stream) == CUDA_SUCCESS);
    REQUIRE(cuMemHostAlloc(&host, 4096, 0) == CUDA_SUCCESS);
    REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  }
  // Pools outlive the context.
  void free_pooled() const { REQUIRE(cuMemFree(pooled) == CUDA_SUCCESS); }
};

void renew_context() {
  CUcontext context = nullptr;
  REQUIRE(cuDevicePrimaryCtxReset(0) == CUDA_SUCCESS);
  REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
}

}  // namespace

TEST_CASE("every call on a broken context says why, until it is reset") {
  const Machine machine;
  const std::uint64_t before = free_bytes();
  const Things things;
  break_context(things.stream);
  CHECK(cuStreamSynchronize(things.stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CUdeviceptr at = 0;
  std::size_t bytes = 0;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUmodule module = nullptr;
  CUgraph graph = nullptr;
  void* host = nullptr;
  const CUresult results[] = {
      cuMemAlloc(&at, 512),
      cuMemAllocAsync(&at, 512, things.stream),
      cuMemAllocAsync(&at, 512, nullptr),
      cuMemAllocManaged(&at, 512, CU_MEM_ATTACH_GLOBAL),
      cuMemAllocPitch(&at, &bytes, 512, 1, 4),
      cuMemFree(things.plain),
      cuMemFree(things.pooled),
      cuMemFreeAsync(things.pooled, things.stream),
      cuMemHostAlloc(&host, 512, 0),
      cuMemFreeHost(things.host),
      cuMemGetInfo(&bytes, &bytes),
      cuEventCreate(&event, 0),
      cuEventRecord(things.event, things.stream),
      cuEventQuery(things.event),
      cuEventSynchronize(things.event),
      cuStreamCreate(&stream, 0),
      cuStreamQuery(things.stream),
      cuStreamQuery(nullptr),
      cuStreamSynchronize(things.stream),
      cuStreamWaitEvent(things.stream, things.event, 0),
      cuStreamBeginCapture(things.stream, CU_STREAM_CAPTURE_MODE_RELAXED),
      cuStreamEndCapture(things.stream, &graph),
      cuCtxSynchronize(),
      cuMemsetD8(things.plain, 0, 4096),
      cuMemsetD8Async(things.plain, 0, 4096, things.stream),
      cuMemcpyDtoH(things.host, things.plain, 64),
      cuMemcpyDtoDAsync(things.plain, things.pooled, 64, things.stream),
      cuModuleLoadData(&module, "any image"),
      cuLaunchHostFunc(
          things.stream, [](void*) {}, nullptr),
  };
  for (std::size_t i = 0; i < std::size(results); ++i) {
    CAPTURE(i);
    CHECK(results[i] == CUDA_ERROR_ILLEGAL_ADDRESS);
  }
  // These still answer.
  CUcontext context = nullptr;
  CUdevice device = 7;
  int count = 0;
  const char* name = nullptr;
  CUmemoryPool pool = nullptr;
  CHECK(cuCtxGetCurrent(&context) == CUDA_SUCCESS);
  CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS);
  CHECK(cuCtxGetDevice(&device) == CUDA_SUCCESS);
  CHECK(cuDeviceGetCount(&count) == CUDA_SUCCESS);
  CHECK(cuDeviceTotalMem(&bytes, 0) == CUDA_SUCCESS);
  CHECK(cuDeviceGetDefaultMemPool(&pool, 0) == CUDA_SUCCESS);
  REQUIRE(cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &name) == CUDA_SUCCESS);
  CHECK(std::strcmp(name, "CUDA_ERROR_ILLEGAL_ADDRESS") == 0);
  renew_context();
  CHECK(cuMemAlloc(&at, 512) == CUDA_SUCCESS);
  CHECK(cuMemFree(at) == CUDA_SUCCESS);
  CHECK(cuEventQuery(things.event) == CUDA_ERROR_INVALID_HANDLE);
  things.free_pooled();
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(free_bytes() == before);
}

TEST_CASE("whoever waits for the work that faults is told") {
  const Machine machine;
  const Things things;
  const int who = GENERATE(range(0, 6));
  break_context(things.stream);
  unsigned word = 0;
  const CUresult result = who == 0   ? cuStreamSynchronize(things.stream)
                          : who == 1 ? cuCtxSynchronize()
                          : who == 2 ? cuMemFree(things.plain)
                          : who == 3 ? cuMemcpyDtoHAsync(&word, things.plain, 4, things.stream)
                          : who == 4 ? cuMemFreeHost(things.host)
                                     : CUDA_SUCCESS;
  if (who == 5) {
    CUresult query = CUDA_ERROR_NOT_READY;
    while (query == CUDA_ERROR_NOT_READY) query = cuStreamQuery(things.stream);
    CHECK(query == CUDA_ERROR_ILLEGAL_ADDRESS);
  } else {
    CHECK(result == CUDA_ERROR_ILLEGAL_ADDRESS);
  }
  renew_context();
  things.free_pooled();
}

TEST_CASE("what is queued behind a fault does not run") {
  const Machine machine;
  const Things things;
  REQUIRE(cuMemsetD32(things.pooled, 3, 1) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  bool called = false;
  Gate gate(things.stream);
  break_context(things.stream);
  REQUIRE(cuMemsetD32Async(things.pooled, 4, 1, things.stream) == CUDA_SUCCESS);
  REQUIRE(cuLaunchHostFunc(
              things.stream, [](void* was) { *static_cast<bool*>(was) = true; }, &called) == CUDA_SUCCESS);
  gate.open();
  CHECK(cuStreamSynchronize(things.stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(!called);
  renew_context();
  CHECK(read_word(things.pooled) == 3);
  things.free_pooled();
}

TEST_CASE("a broken context breaks no other, and a stream of it is refused in any") {
  const Machine machine;
  const CUstream stream = make_stream();
  break_context(stream);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
  {
    const Peer peer;
    CUdeviceptr at = 0;
    CHECK(cuMemAlloc(&at, 512) == CUDA_SUCCESS);
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(cuStreamQuery(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
  }
  CUdeviceptr at = 0;
  const CUcontext other = make_context();
  CHECK(cuMemAlloc(&at, 512) == CUDA_SUCCESS);
  CHECK(cuCtxDestroy(other) == CUDA_SUCCESS);
  CHECK(cuMemAlloc(&at, 512) == CUDA_ERROR_ILLEGAL_ADDRESS);
}
