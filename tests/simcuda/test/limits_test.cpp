// SPDX-License-Identifier: Apache-2.0
// Sizes that no device has are refused at once and without any effect, even where rounding would overflow.
#include "tests/simcuda/test/machine.h"

using namespace simcuda_test;

namespace {

constexpr std::size_t kAbsurd[] = {SIZE_MAX, SIZE_MAX - 4096, SIZE_MAX - (1 << 20), std::size_t{1} << 60};

}  // namespace

TEST_CASE("absurd sizes are out of memory by every door, and nothing is lost by asking") {
  const Machine machine;
  const CUstream stream = make_stream();
  CUmemoryPool pool = nullptr;
  REQUIRE(cuDeviceGetDefaultMemPool(&pool, 0) == CUDA_SUCCESS);
  // The pool's idle memory stays where it is: giving it back would not help.
  cuuint64_t keep = UINT64_MAX;
  REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep) == CUDA_SUCCESS);
  CUdeviceptr at = 0;
  REQUIRE(cuMemAllocAsync(&at, kPage, stream) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(at, stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  const std::uint64_t before = free_bytes();
  for (const std::size_t bytes : kAbsurd) {
    CUdeviceptr none = 7;
    CHECK(cuMemAlloc(&none, bytes) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuMemAllocAsync(&none, bytes, stream) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuMemAllocFromPoolAsync(&none, bytes, pool, stream) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(none == 0);
    void* host = nullptr;
    CHECK(cuMemHostAlloc(&host, bytes, 0) == CUDA_ERROR_OUT_OF_MEMORY);
    const CUmemAllocationProp wanted = properties();
    CUmemGenericAllocationHandle handle = 0;
    CHECK(cuMemCreate(&handle, bytes / kPage * kPage, &wanted, 0) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuMemAddressReserve(&none, bytes / kPage * kPage, 0, 0, 0) == CUDA_ERROR_OUT_OF_MEMORY);
  }
  CHECK(free_bytes() == before);
  keep = 0;
  REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep) == CUDA_SUCCESS);
}

TEST_CASE("nothing requested, and no pool, are invalid") {
  const Machine machine;
  CUmemoryPool pool = nullptr;
  REQUIRE(cuDeviceGetDefaultMemPool(&pool, 0) == CUDA_SUCCESS);
  CUdeviceptr at = 0;
  CHECK(cuMemAlloc(&at, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemAllocAsync(&at, 0, nullptr) == CUDA_SUCCESS);  // seen on an H200
  CHECK(cuMemAllocFromPoolAsync(&at, 0, pool, nullptr) == CUDA_SUCCESS);
  CHECK(cuMemAllocFromPoolAsync(&at, 512, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemAlloc(nullptr, 512) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("fills and copies whose size wraps touch nothing") {
  const Machine machine;
  CUdeviceptr at = 0;
  REQUIRE(cuMemAlloc(&at, 4096) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD32(at, 5, 1024) == CUDA_SUCCESS);
  CHECK(cuMemsetD32Async(at, 6, (SIZE_MAX >> 2) + 2, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemsetD2D32Async(at, 1 << 20, 6, 1, (SIZE_MAX >> 20) + 2, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemsetD8Async(at, 6, SIZE_MAX, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(read_word(at) == 5);
  REQUIRE(cuMemFree(at) == CUDA_SUCCESS);
}
