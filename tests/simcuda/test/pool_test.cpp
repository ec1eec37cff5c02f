// SPDX-License-Identifier: Apache-2.0
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
  REQUIRE(cuMemFreeAsync(at, second) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(elsewhere, second) == CUDA_SUCCESS);
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
  REQUIRE(cuMemFreeAsync(other, apart) == CUDA_SUCCESS);
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

TEST_CASE("synchronizing gives back what is over the threshold") {
  const Machine machine;
  const CUmemoryPool pool = make_pool();
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

TEST_CASE("without a threshold memory goes back at each kind of synchronization, and not before") {
  const Machine machine;
  const CUstream stream = make_stream();
  const CUevent event = make_event();
  const std::uint64_t before = free_bytes();
  for (int kind = 0; kind < 3; ++kind) {
    const CUdeviceptr at = allocate(100 * kPage, stream);
    REQUIRE(cuMemFreeAsync(at, stream) == CUDA_SUCCESS);
    REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
    while (cuEventQuery(event) == CUDA_ERROR_NOT_READY) continue;
    CHECK(free_bytes() <= before - 100 * kPage);
    const CUresult result = kind == 0   ? cuStreamSynchronize(stream)
                            : kind == 1 ? cuEventSynchronize(event)
                                        : cuCtxSynchronize();
    REQUIRE(result == CUDA_SUCCESS);
    CHECK(free_bytes() == before);
  }
}

TEST_CASE("trimming neither waits for work nor takes what awaits it") {
  const Machine machine;
  const CUstream stream = make_stream();
  const CUmemoryPool pool = make_pool();
  const std::uint64_t before = free_bytes();
  const CUdeviceptr at = allocate_from(pool, 100 * kPage, stream);
  Gate gate(stream);
  REQUIRE(cuMemFreeAsync(at, stream) == CUDA_SUCCESS);
  REQUIRE(cuMemPoolTrimTo(pool, 0) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
  CHECK(free_bytes() <= before - 100 * kPage);
  gate.open();
  while (cuStreamQuery(stream) == CUDA_ERROR_NOT_READY) continue;
  REQUIRE(cuMemPoolTrimTo(pool, 0) == CUDA_SUCCESS);
  CHECK(free_bytes() == before);
  REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
}

#if CUDA_VERSION >= 12020
TEST_CASE("a pool grows to its maximum and no further") {
  const Machine machine;
  CUmemPoolProps wanted{};
  wanted.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  wanted.maxSize = 64 * kPage;
  CUmemoryPool pool = nullptr;
  REQUIRE(cuMemPoolCreate(&pool, &wanted) == CUDA_SUCCESS);
  CUdeviceptr none = 0;
  CHECK(cuMemAllocFromPoolAsync(&none, 65 * kPage, pool, nullptr) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuMemAllocFromPoolAsync(&none, SIZE_MAX, pool, nullptr) == CUDA_ERROR_OUT_OF_MEMORY);
  const CUdeviceptr first = allocate_from(pool, 40 * kPage, nullptr);
  const CUdeviceptr second = allocate_from(pool, 24 * kPage, nullptr);
  CHECK(cuMemAllocFromPoolAsync(&none, 512, pool, nullptr) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(ask(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 64 * kPage);
  // Idle pieces make room for a larger one.
  REQUIRE(cuMemFree(first) == CUDA_SUCCESS);
  REQUIRE(cuMemFree(second) == CUDA_SUCCESS);
  const CUdeviceptr whole = allocate_from(pool, 64 * kPage, nullptr);
  REQUIRE(cuMemFree(whole) == CUDA_SUCCESS);
  REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
}
#endif

TEST_CASE("a pool's access is given to each device, and taken, for all its memory") {
  const Machine machine;
  const CUmemoryPool pool = make_pool();
  const CUdeviceptr before = allocate_from(pool, kPage, nullptr);
  const bool taken_again = GENERATE(false, true);
  CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 1}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  REQUIRE(cuMemPoolSetAccess(pool, &access, 1) == CUDA_SUCCESS);
  const CUdeviceptr after = allocate_from(pool, 100 * kPage, nullptr);
  if (taken_again) {
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    REQUIRE(cuMemPoolSetAccess(pool, &access, 1) == CUDA_SUCCESS);
  }
  CUmemAccess_flags flags{};
  CUmemLocation second{CU_MEM_LOCATION_TYPE_DEVICE, 1};
  REQUIRE(cuMemPoolGetAccess(&flags, pool, &second) == CUDA_SUCCESS);
  CHECK(flags == access.flags);
  for (const CUdeviceptr at : {before, after}) {
    const Peer peer;
    REQUIRE(cuMemsetD32Async(at, 1, 1, nullptr) == CUDA_SUCCESS);
    CHECK(cuCtxSynchronize() == (taken_again ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS));
  }
  access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_NONE};
  CHECK(cuMemPoolSetAccess(pool, &access, 1) == CUDA_ERROR_INVALID_VALUE);  // its own device keeps it
  REQUIRE(cuMemFreeAsync(before, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(after, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
}

TEST_CASE("at the end of memory a pool's owner waits on the device for another stream's free, if it may") {
  const Machine machine;
  const CUstream first = make_stream();
  const CUstream second = make_stream();
  const CUmemoryPool pool = make_pool();
  const bool may_wait = GENERATE(true, false);
  int allowed = may_wait ? 1 : 0;
  REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &allowed) == CUDA_SUCCESS);
  const std::size_t most = free_bytes() / kPage * kPage;
  const CUdeviceptr all = allocate_from(pool, most, first);
  Gate gate(first);
  REQUIRE(cuMemFreeAsync(all, first) == CUDA_SUCCESS);
  CUdeviceptr next = 0;
  const CUresult result = cuMemAllocFromPoolAsync(&next, most, pool, second);
  CHECK(result == (may_wait ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY));
  CHECK(cuStreamQuery(second) == (may_wait ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS));
  gate.open();
  if (may_wait) REQUIRE(cuMemFreeAsync(next, second) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
}

TEST_CASE("cuMemFree of a pool's memory waits for nobody") {
  const Machine machine;
  const CUstream stream = make_stream();
  const CUdeviceptr at = allocate(kPage, stream);
  const Gate gate(stream);
  REQUIRE(cuMemFree(at) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
}

TEST_CASE("the handle of a destroyed pool may name the next one while its memory is in use") {
  const Machine machine;
  const CUmemoryPool first = make_pool();
  const CUdeviceptr at = allocate_from(first, kPage, nullptr);
  REQUIRE(cuMemPoolDestroy(first) == CUDA_SUCCESS);
  const CUmemoryPool second = make_pool();
  CHECK(second == first);
  CHECK(ask(second, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0);
  REQUIRE(cuMemsetD32(at, 9, 1) == CUDA_SUCCESS);
  CHECK(read_word(at) == 9);
  REQUIRE(cuMemFreeAsync(at, nullptr) == CUDA_SUCCESS);
  CHECK(ask(second, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0);
  REQUIRE(cuMemPoolDestroy(second) == CUDA_SUCCESS);
}
