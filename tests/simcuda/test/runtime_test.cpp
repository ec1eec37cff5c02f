// SPDX-License-Identifier: Apache-2.0
// Tests of the runtime, which is linked as a program links it and finds the driver by itself.
#include <thread>

#include "catch.h"
#include "tests/simcuda/runtime/simcudart.h"

TEST_CASE("a program that knows only the runtime can allocate, fill and read") {
  void* plain = nullptr;
  REQUIRE(cudaMalloc(&plain, 1000) == cudaSuccess);
  REQUIRE(cudaMemset(plain, 7, 1000) == cudaSuccess);
  unsigned char seen = 0;
  REQUIRE(cudaMemcpy(&seen, static_cast<char*>(plain) + 999, 1, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(seen == 7);
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  void* pooled = nullptr;
  REQUIRE(cudaMallocAsync(&pooled, 4096, stream) == cudaSuccess);
  REQUIRE(cudaMemcpyAsync(pooled, plain, 1000, cudaMemcpyDefault, stream) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
  REQUIRE(cudaMemcpy(&seen, pooled, 1, cudaMemcpyDefault) == cudaSuccess);
  CHECK(seen == 7);
  REQUIRE(cudaFreeAsync(pooled, stream) == cudaSuccess);
  REQUIRE(cudaFree(plain) == cudaSuccess);
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
}

TEST_CASE("errors are returned and remembered until they are asked for") {
  void* memory = nullptr;
  CHECK(cudaMalloc(&memory, std::size_t{1} << 50) == cudaErrorMemoryAllocation);
  CHECK(memory == nullptr);
  CHECK(cudaPeekAtLastError() == cudaErrorMemoryAllocation);
  CHECK(std::string(cudaGetErrorString(cudaGetLastError())) == "out of memory");
  CHECK(cudaGetLastError() == cudaSuccess);
  REQUIRE(cudaMalloc(&memory, 0) == cudaSuccess);
  CHECK(memory == nullptr);
  CHECK(cudaFree(nullptr) == cudaSuccess);
}

TEST_CASE("per-thread entry points use the thread's own stream") {
  void* memory = nullptr;
  REQUIRE(cudaMallocAsync_ptsz(&memory, 512, nullptr) == cudaSuccess);
  REQUIRE(cudaMemsetAsync_ptsz(memory, 3, 512, nullptr) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(cudaStreamPerThread) == cudaSuccess);
  CHECK(*static_cast<unsigned char*>(memory) == 3);
  REQUIRE(cudaFreeAsync_ptsz(memory, nullptr) == cudaSuccess);
}

TEST_CASE("each thread chooses its device; a reset device can be used again") {
  int count = 0;
  REQUIRE(cudaGetDeviceCount(&count) == cudaSuccess);
  REQUIRE(count == 2);
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  int other = -1;
  std::thread([&] { cudaGetDevice(&other); }).join();
  CHECK(other == 0);
  void* memory = nullptr;
  REQUIRE(cudaMalloc(&memory, 512) == cudaSuccess);
  REQUIRE(cudaDeviceReset() == cudaSuccess);
  CHECK(cudaFree(memory) == cudaErrorInvalidValue);
  REQUIRE(cudaMalloc(&memory, 512) == cudaSuccess);
  int device = -1;
  REQUIRE(cudaGetDevice(&device) == cudaSuccess);
  CHECK(device == 1);
  CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice);
}

TEST_CASE("pool attributes are answered") {
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  cudaMemPool_t pool = nullptr;
  REQUIRE(cudaDeviceGetDefaultMemPool(&pool, 0) == cudaSuccess);
  void* memory = nullptr;
  REQUIRE(cudaMallocFromPoolAsync(&memory, 4096, pool, nullptr) == cudaSuccess);
  cuuint64_t used = 0;
  REQUIRE(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used) == cudaSuccess);
  CHECK(used >= 4096);
  REQUIRE(cudaFreeAsync(memory, nullptr) == cudaSuccess);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  REQUIRE(cudaMemPoolTrimTo(pool, 0) == cudaSuccess);
}
