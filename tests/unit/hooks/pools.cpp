// SPDX-License-Identifier: Apache-2.0
// The figures of served pools, and what the heaps learn about pools.
#include <cuda.h>

#include "catch.h"
#include "machine.h"

// Newer headers declare later versions only.
extern "C" CUresult CUDAAPI cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device);

using namespace stalloc;
using namespace stalloc::hooks;
using namespace stalloc::test;

namespace {

constexpr std::uint64_t kMiB = 1 << 20;

using Attribute = CUresult(CUmemoryPool, CUmemPool_attribute, void*);

// CUDA's own pool answers 1,000 for whatever it is asked.
CUresult answer_thousand(CUmemoryPool, CUmemPool_attribute which, void* value) {
  if (which < CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
    *static_cast<int*>(value) = 1;
  } else {
    *static_cast<cuuint64_t*>(value) = 1000;
  }
  return CUDA_SUCCESS;
}
CUresult refuse(CUmemoryPool, CUmemPool_attribute, void*) { return CUDA_ERROR_INVALID_VALUE; }

CUmemoryPool default_pool() {
  CUmemoryPool pool = nullptr;
  REQUIRE(cuDeviceGetDefaultMemPool(&pool, 0) == CUDA_SUCCESS);
  return pool;
}

cuuint64_t figure(CUmemoryPool pool, CUmemPool_attribute which) {
  Behind original(Hook::cuMemPoolGetAttribute, &answer_thousand);
  cuuint64_t value = 0;
  REQUIRE(pools::get_attribute(original.call(), pool, which, &value) == CUDA_SUCCESS);
  return value;
}

// As a program asks.
cuuint64_t true_figure(CUmemoryPool pool, CUmemPool_attribute which) {
  cuuint64_t value = 0;
  REQUIRE(cuMemPoolGetAttribute(pool, which, &value) == CUDA_SUCCESS);
  return value;
}

}  // namespace

TEST_CASE("a pool's figures are CUDA's and what is served in its name", "[hooks][pools]") {
  const Machine machine;
  serve::Heap& heap = machine.heap();
  const CUmemoryPool pool = default_pool();
  CUdeviceptr at = 0;
  REQUIRE(cuMemAllocAsync(&at, 3 * kMiB, nullptr) == CUDA_SUCCESS);
  REQUIRE(heap.owns(at));
  const std::uint64_t held = heap.statistics().physical;
  REQUIRE(held >= 3 * kMiB);
  CHECK(figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 1000 + 3 * kMiB);
  CHECK(figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 1000 + held);
  REQUIRE(cuMemFreeAsync(at, nullptr) == CUDA_SUCCESS);
  CHECK(figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 1000);
  CHECK(figure(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 3 * kMiB);
  CHECK(figure(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) == 1000);
}

TEST_CASE("a pool that nothing is served from, and an error, are CUDA's alone", "[hooks][pools]") {
  const Machine machine;
  (void)machine.heap();
  const auto unknown = reinterpret_cast<CUmemoryPool>(0x1);
  CHECK(figure(unknown, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 1000);
  Behind original(Hook::cuMemPoolGetAttribute, &refuse);
  cuuint64_t value = 7;
  CHECK(pools::get_attribute(original.call(), default_pool(), CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(value == 7);
}

TEST_CASE("an attribute that is no figure is not touched", "[hooks][pools]") {
  const Machine machine;
  (void)machine.heap();
  Behind original(Hook::cuMemPoolGetAttribute, &answer_thousand);
  int both[2] = {0, -1};
  REQUIRE(pools::get_attribute(original.call(), default_pool(), CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, both) ==
          CUDA_SUCCESS);
  CHECK(both[0] == 1);
  CHECK(both[1] == -1);
}

TEST_CASE("nothing is served from a pool that must make no stream wait for another", "[hooks][pools]") {
  const Machine machine;
  serve::Heap& heap = machine.heap();
  for (int may : {1, 0}) {
    REQUIRE(cuMemPoolSetAttribute(default_pool(), CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &may) ==
            CUDA_SUCCESS);
    CUdeviceptr at = 0;
    REQUIRE(cuMemAllocAsync(&at, kMiB, nullptr) == CUDA_SUCCESS);
    CHECK(heap.owns(at) == (may == 1));
    CHECK(cuMemFreeAsync(at, nullptr) == CUDA_SUCCESS);
  }
}

TEST_CASE("a high mark is reset where CUDA resets its own", "[hooks][pools]") {
  const Machine machine;
  (void)machine.heap();
  const CUmemoryPool pool = default_pool();
  CUdeviceptr at = 0;
  REQUIRE(cuMemAllocAsync(&at, 3 * kMiB, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(at, nullptr) == CUDA_SUCCESS);
  cuuint64_t default_stream = 0;
  Behind refused(Hook::cuMemPoolSetAttribute, &refuse);
  CHECK(pools::set_attribute(refused.call(), pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &default_stream) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(figure(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 3 * kMiB);
  CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &default_stream) == CUDA_SUCCESS);
  CHECK(figure(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 1000);  // CUDA's own
}

TEST_CASE("a pool that is refused keeps the figures of what was served, and is trimmed", "[hooks][pools]") {
  const Machine machine;
  serve::Heap& heap = machine.heap();
  const CUmemoryPool pool = default_pool();
  cuuint64_t everything = ~cuuint64_t{0};
  REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &everything) == CUDA_SUCCESS);
  CUdeviceptr at = 0;
  REQUIRE(cuMemAllocAsync(&at, 4 * kMiB, nullptr) == CUDA_SUCCESS);
  REQUIRE(heap.owns(at));
  int default_stream = 0;
  REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &default_stream) ==
          CUDA_SUCCESS);
  CHECK(true_figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 4 * kMiB);
  CHECK(true_figure(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 4 * kMiB);
  CHECK(true_figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= 4 * kMiB);
  CUdeviceptr of_cuda = 0;
  REQUIRE(cuMemAllocAsync(&of_cuda, 2 * kMiB, nullptr) == CUDA_SUCCESS);
  CHECK_FALSE(heap.owns(of_cuda));
  CHECK(cuMemFreeAsync(at, nullptr) == CUDA_SUCCESS);
  CHECK(cuMemFreeAsync(of_cuda, nullptr) == CUDA_SUCCESS);
  CHECK(true_figure(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 6 * kMiB);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(heap.held_bytes() >= 4 * kMiB);
  CHECK(cuMemPoolTrimTo(pool, 0) == CUDA_SUCCESS);
  CHECK(heap.held_bytes() == 0);
}

TEST_CASE("what CUDA gives counts for the pool that it is from, whatever context asked", "[hooks][pools]") {
  const Machine machine;
  const CUmemoryPool pool = default_pool();
  cuuint64_t default_stream = 0;
  REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &default_stream) == CUDA_SUCCESS);
  CUcontext other = nullptr;
  REQUIRE(cuCtxCreate_v2(&other, 0, 0) == CUDA_SUCCESS);
  CUstream of_other = nullptr;
  REQUIRE(cuStreamCreate(&of_other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CUdeviceptr early = 0;  // before there is a heap
  REQUIRE(cuMemAllocAsync(&early, 64 * kMiB, of_other) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(machine.context) == CUDA_SUCCESS);
  CUdeviceptr served = 0;
  REQUIRE(cuMemAllocAsync(&served, 4 * kMiB, nullptr) == CUDA_SUCCESS);
  REQUIRE(machine.heap().owns(served));
  CHECK(true_figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 68 * kMiB);
  CHECK(true_figure(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 68 * kMiB);
  REQUIRE(cuMemFreeAsync(early, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &default_stream) == CUDA_SUCCESS);

  REQUIRE(cuCtxSetCurrent(other) == CUDA_SUCCESS);
  CUdeviceptr late = 0;
  REQUIRE(cuMemAllocAsync(&late, 32 * kMiB, of_other) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(late, of_other) == CUDA_SUCCESS);
  REQUIRE(cuCtxDestroy_v2(other) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(machine.context) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(served, nullptr) == CUDA_SUCCESS);
  CHECK(true_figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0);
  CHECK(true_figure(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 36 * kMiB);
}

TEST_CASE("a request on another device's stream counts for that device's pool", "[hooks][pools]") {
  const Machine machine;
  CUcontext second = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&second, 1) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(second) == CUDA_SUCCESS);
  CUmemoryPool pools[2] = {default_pool(), nullptr};
  REQUIRE(cuDeviceGetDefaultMemPool(&pools[1], 1) == CUDA_SUCCESS);
  cuuint64_t default_stream = 0;
  for (CUmemoryPool pool : pools) {
    REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &default_stream) == CUDA_SUCCESS);
  }
  CUstream of_second = nullptr;
  REQUIRE(cuStreamCreate(&of_second, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CUdeviceptr second_served = 0;
  REQUIRE(cuMemAllocAsync(&second_served, 2 * kMiB, of_second) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(machine.context) == CUDA_SUCCESS);
  CUdeviceptr served = 0;
  REQUIRE(cuMemAllocAsync(&served, 2 * kMiB, nullptr) == CUDA_SUCCESS);
  CUdeviceptr crossing = 0;
  REQUIRE(cuMemAllocAsync(&crossing, 64 * kMiB, of_second) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(crossing, of_second) == CUDA_SUCCESS);
  CHECK(true_figure(pools[0], CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 2 * kMiB);
  CHECK(true_figure(pools[1], CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 66 * kMiB);
  REQUIRE(cuMemFreeAsync(second_served, of_second) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(served, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuDevicePrimaryCtxRelease_v2(1) == CUDA_SUCCESS);
}

TEST_CASE("a pool of the program's is known until it is destroyed, and longer where that fails", "[hooks][pools]") {
  const Machine machine;
  (void)machine.heap();
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemoryPool pool = nullptr;
  REQUIRE(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
  Behind refused(
      Hook::cuMemPoolDestroy, +[](CUmemoryPool) { return CUDA_ERROR_INVALID_VALUE; });
  cuuint64_t threshold = 64 * kMiB;
  REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold) == CUDA_SUCCESS);
  CUdeviceptr before = 0;
  REQUIRE(cuMemAllocFromPoolAsync(&before, 8 * kMiB, pool, nullptr) == CUDA_SUCCESS);
  CHECK(pools::destroy(refused.call(), pool) == CUDA_ERROR_INVALID_VALUE);
  CHECK(true_figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 8 * kMiB);
  CUdeviceptr at = 0;
  REQUIRE(cuMemAllocFromPoolAsync(&at, kMiB, pool, nullptr) == CUDA_SUCCESS);
  CHECK(machine.heap().owns(at));
  CHECK(true_figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 9 * kMiB);
  REQUIRE(cuMemFreeAsync(before, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(at, nullptr) == CUDA_SUCCESS);
  CHECK(true_figure(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 9 * kMiB);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(machine.heap().held_bytes() >= 8 * kMiB);  // its threshold still holds
  REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
}
