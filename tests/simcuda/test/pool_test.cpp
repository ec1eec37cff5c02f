#include "tests/simcuda/test/machine.h"

using namespace simcuda_test;

namespace {

CUdeviceptr allocate(std::size_t bytes, CUstream stream) {
  CUdeviceptr at = 0;
  REQUIRE(cuMemAllocAsync(&at, bytes, stream) == CUDA_SUCCESS);
  return at;
}

cuuint64_t ask(CUmemoryPool pool, CUmemPool_attribute attribute) {
  cuuint64_t value = 0;
  REQUIRE(cuMemPoolGetAttribute(pool, attribute, &value) == CUDA_SUCCESS);
  return value;
}

CUmemoryPool default_pool() {
  CUmemoryPool pool = nullptr;
  REQUIRE(cuDeviceGetDefaultMemPool(&pool, 0) == CUDA_SUCCESS);
  return pool;
}

}  // namespace

TEST_CASE("a pool reuses at once on the stream that freed, elsewhere when the free has run") {
  const Machine machine;
  const CUstream first = make_stream();
  const CUstream second = make_stream();
  cuuint64_t keep = UINT64_MAX;
  REQUIRE(cuMemPoolSetAttribute(default_pool(), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep) == CUDA_SUCCESS);
  const CUdeviceptr at = allocate(30 * kPage, first);
  Gate gate(first);
  REQUIRE(cuMemFreeAsync(at, first) == CUDA_SUCCESS);
  const CUdeviceptr elsewhere = allocate(30 * kPage, second);
  CHECK(physical(elsewhere).handle != physical(at).handle);
  const CUdeviceptr again = allocate(30 * kPage, first);
  CHECK(again == at);
  REQUIRE(cuMemFreeAsync(again, first) == CUDA_SUCCESS);
  gate.open();
  REQUIRE(cuStreamSynchronize(first) == CUDA_SUCCESS);
  CHECK(allocate(30 * kPage, second) == at);
  keep = 0;
  REQUIRE(cuMemPoolSetAttribute(default_pool(), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep) == CUDA_SUCCESS);
}

TEST_CASE("a free on the legacy stream waits for the blocking streams before it") {
  const Machine machine;
  const CUstream blocking = make_stream(CU_STREAM_DEFAULT);
  const CUstream apart = make_stream();
  const CUdeviceptr at = allocate(8 * kPage, blocking);
  Gate gate(blocking);
  REQUIRE(cuMemsetD32Async(at, 1, 1, blocking) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(at, nullptr) == CUDA_SUCCESS);
  const CUdeviceptr other = allocate(8 * kPage, apart);
  CHECK(other != at);
}

TEST_CASE("live allocations never share a byte, and the statistics follow them") {
  const Machine machine;
  const CUmemoryPool pool = default_pool();
  cuuint64_t zero = 0;
  REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero) == CUDA_SUCCESS);
  const cuuint64_t used = ask(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
  std::vector<CUdeviceptr> live;
  for (std::size_t i = 0; i < 198; ++i) {
    live.push_back(allocate(1000 + 700 * (i % 13), nullptr));
    REQUIRE(cuMemsetD32Async(live.back(), static_cast<unsigned>(i), (1000 + 700 * (i % 13)) / 4, nullptr) ==
            CUDA_SUCCESS);
    if (i % 3 == 2) {
      REQUIRE(cuMemFreeAsync(live[live.size() - 2], nullptr) == CUDA_SUCCESS);
      live.erase(live.end() - 2);
    }
  }
  std::size_t i = 0;
  for (const CUdeviceptr at : live) {
    while (i % 3 == 1) ++i;
    CHECK(read_word(at) == i);
    ++i;
    REQUIRE(cuMemFreeAsync(at, nullptr) == CUDA_SUCCESS);
  }
  CHECK(ask(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == used);
  CHECK(ask(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) > used);
  REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero) == CUDA_SUCCESS);
  CHECK(ask(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == used);
}

TEST_CASE("synchronising gives back what is over the threshold") {
  const Machine machine;
  CUmemPoolProps wanted{};
  wanted.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemoryPool pool = nullptr;
  REQUIRE(cuMemPoolCreate(&pool, &wanted) == CUDA_SUCCESS);
  const std::uint64_t free_before = free_bytes();
  CUdeviceptr at = 0;
  REQUIRE(cuMemAllocFromPoolAsync(&at, 100 * kPage, pool, nullptr) == CUDA_SUCCESS);
  CHECK(ask(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= 100 * kPage);
  CHECK(free_bytes() == free_before - ask(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
  cuuint64_t keep = 1ULL << 40;
  REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(at, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
  CHECK(free_bytes() < free_before);
  REQUIRE(cuMemPoolTrimTo(pool, 0) == CUDA_SUCCESS);
  CHECK(free_bytes() == free_before);
  REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
  CHECK(cuMemPoolTrimTo(pool, 0) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("idle pool memory makes room for others before memory runs out") {
  const Machine machine;
  const CUmemoryPool pool = default_pool();
  cuuint64_t keep = UINT64_MAX;
  REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep) == CUDA_SUCCESS);
  const std::uint64_t most = free_bytes();
  const CUdeviceptr at = allocate(most / 2, nullptr);
  REQUIRE(cuMemFreeAsync(at, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
  CHECK(free_bytes() < most);
  const auto handle = create(most / kPage * kPage);
  REQUIRE(cuMemRelease(handle) == CUDA_SUCCESS);
  keep = 0;
  REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep) == CUDA_SUCCESS);
}

TEST_CASE("either free ends either allocation, once") {
  const Machine machine;
  CUdeviceptr plain = 0;
  REQUIRE(cuMemAlloc(&plain, 4096) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(plain, nullptr) == CUDA_SUCCESS);
  CHECK(cuMemFreeAsync(plain, nullptr) == CUDA_ERROR_INVALID_VALUE);
  const CUdeviceptr pooled = allocate(4096, nullptr);
  REQUIRE(cuMemFree(pooled) == CUDA_SUCCESS);
  CHECK(cuMemFree(pooled) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemFree(0) == CUDA_SUCCESS);
  CHECK(cuMemFreeAsync(0x1234500, nullptr) == CUDA_ERROR_INVALID_VALUE);
}
