// SPDX-License-Identifier: Apache-2.0
// What CUDA says about pointers, by the kind of memory.
#include <cstring>

#include "tests/simcuda/test/machine.h"

using namespace simcuda_test;

namespace {

// The answer to a question that must not be refused.
template <class Value>
Value ask(CUpointer_attribute attribute, CUdeviceptr at) {
  Value value{};
  REQUIRE(cuPointerGetAttribute(&value, attribute, at) == CUDA_SUCCESS);
  return value;
}

CUresult refusal(CUpointer_attribute attribute, CUdeviceptr at) {
  unsigned long long value = 0;
  return cuPointerGetAttribute(&value, attribute, at);
}

void expect_unknown(CUdeviceptr at) {
  for (int i = CU_POINTER_ATTRIBUTE_CONTEXT; i <= CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE; ++i) {
    CAPTURE(i);
    CHECK(refusal(static_cast<CUpointer_attribute>(i), at) == CUDA_ERROR_INVALID_VALUE);
  }
  CUcontext context = current_context();
  unsigned type = 7;
  CUdeviceptr pointer = 7;
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                 CU_POINTER_ATTRIBUTE_DEVICE_POINTER};
  void* answers[] = {&context, &type, &pointer};
  CHECK(cuPointerGetAttributes(3, which, answers, at) == CUDA_SUCCESS);
  CHECK(context == nullptr);
  CHECK(type == 0);
  CHECK(pointer == 0);
}

}  // namespace

TEST_CASE("memory of cuMemAlloc belongs to its context and can be shared") {
  const Machine machine;
  const bool own_context = GENERATE(false, true);
  const CUcontext context = own_context ? make_context() : current_context();
  CUdeviceptr at = 0;
  CUdeviceptr other = 0;
  REQUIRE(cuMemAlloc(&at, 3000) == CUDA_SUCCESS);
  REQUIRE(cuMemAlloc(&other, 3000) == CUDA_SUCCESS);
  const CUdeviceptr inside = at + 2999;
  CHECK(ask<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, inside) == context);
  CHECK(ask<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, inside) == CU_MEMORYTYPE_DEVICE);
  CHECK(ask<CUdeviceptr>(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, inside) == inside);
  CHECK(refusal(CU_POINTER_ATTRIBUTE_HOST_POINTER, inside) == CUDA_ERROR_INVALID_VALUE);
  CHECK(ask<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, inside) == 0);
  CHECK(ask<bool>(CU_POINTER_ATTRIBUTE_IS_MANAGED, inside) == false);
  CHECK(ask<int>(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, inside) == 1);
  CHECK(ask<CUdeviceptr>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, inside) == at);
  CHECK(ask<std::size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, inside) == 3000);
  CHECK(ask<bool>(CU_POINTER_ATTRIBUTE_MAPPED, inside) == true);
  CHECK(ask<unsigned>(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, inside) == CU_MEM_HANDLE_TYPE_NONE);
  CHECK(ask<CUmemoryPool>(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, inside) == nullptr);
  CHECK(ask<unsigned long long>(CU_POINTER_ATTRIBUTE_BUFFER_ID, inside) ==
        ask<unsigned long long>(CU_POINTER_ATTRIBUTE_BUFFER_ID, at));
  CHECK(ask<unsigned long long>(CU_POINTER_ATTRIBUTE_BUFFER_ID, at) !=
        ask<unsigned long long>(CU_POINTER_ATTRIBUTE_BUFFER_ID, other));
  REQUIRE(cuMemFree(other) == CUDA_SUCCESS);
  REQUIRE(cuMemFree(at) == CUDA_SUCCESS);
  if (own_context) REQUIRE(cuCtxDestroy(context) == CUDA_SUCCESS);
}

TEST_CASE("a pool's memory belongs to the pool and to no context") {
  const Machine machine;
  const CUmemoryPool pool = make_pool(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  const CUdeviceptr at = allocate_from(pool, 3000, nullptr);
  const CUdeviceptr other = allocate_from(pool, 3000, nullptr);
  const CUdeviceptr inside = at + 2999;
  CHECK(ask<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, inside) == nullptr);
  CHECK(ask<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, inside) == CU_MEMORYTYPE_DEVICE);
  CHECK(ask<CUdeviceptr>(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, inside) == inside);
  CHECK(ask<int>(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, inside) == 0);
  CHECK(ask<CUdeviceptr>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, inside) == at);
  CHECK(ask<std::size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, inside) == 3000);
  CHECK(ask<unsigned>(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, inside) == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  CHECK(ask<CUmemoryPool>(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, inside) == pool);
  const auto id = ask<unsigned long long>(CU_POINTER_ATTRIBUTE_BUFFER_ID, at);
  CHECK(id != ask<unsigned long long>(CU_POINTER_ATTRIBUTE_BUFFER_ID, other));
  CUmemGenericAllocationHandle handle = 0;
  CHECK(cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(at)) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemFreeAsync(at, nullptr) == CUDA_SUCCESS);
  const CUdeviceptr again = allocate_from(pool, 3000, nullptr);
  REQUIRE(again == at);
  CHECK(id != ask<unsigned long long>(CU_POINTER_ATTRIBUTE_BUFFER_ID, again));  // never a second time
  REQUIRE(cuMemFree(again) == CUDA_SUCCESS);
  REQUIRE(cuMemFree(other) == CUDA_SUCCESS);
  REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
}

TEST_CASE("of virtual memory the range is what was reserved, and the address range what is mapped") {
  const Machine machine;
  const auto handle = create(2 * kPage);
  CUdeviceptr base = 0;
  REQUIRE(cuMemAddressReserve(&base, 8 * kPage, 0, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemMap(base + 2 * kPage, 2 * kPage, 0, handle, 0) == CUDA_SUCCESS);
  const CUdeviceptr inside = base + 3 * kPage;
  CHECK(ask<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, inside) == nullptr);
  CHECK(ask<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, inside) == CU_MEMORYTYPE_DEVICE);
  CHECK(ask<int>(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, inside) == 0);
  CHECK(ask<CUmemoryPool>(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, inside) == nullptr);
  CHECK(ask<CUdeviceptr>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, inside) == base);
  CHECK(ask<std::size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, inside) == 8 * kPage);
  CHECK(ask<bool>(CU_POINTER_ATTRIBUTE_MAPPED, inside) == true);
  CUdeviceptr found = 0;
  std::size_t bytes = 0;
  REQUIRE(cuMemGetAddressRange(&found, &bytes, inside) == CUDA_SUCCESS);
  CHECK(found == base + 2 * kPage);
  CHECK(bytes == 2 * kPage);
  CUmemGenericAllocationHandle retained = 0;
  REQUIRE(cuMemRetainAllocationHandle(&retained, reinterpret_cast<void*>(inside)) == CUDA_SUCCESS);
  CHECK(retained == handle);
  REQUIRE(cuMemRelease(retained) == CUDA_SUCCESS);
  // Here addresses are reserved and nothing is mapped.
  CHECK(ask<bool>(CU_POINTER_ATTRIBUTE_MAPPED, base) == false);
  CHECK(ask<CUdeviceptr>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, base + kPage) == base);
  CHECK(refusal(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, base) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemUnmap(base + 2 * kPage, 2 * kPage) == CUDA_SUCCESS);
  REQUIRE(cuMemAddressFree(base, 8 * kPage) == CUDA_SUCCESS);
  REQUIRE(cuMemRelease(handle) == CUDA_SUCCESS);
  expect_unknown(inside);
}

TEST_CASE("managed and pinned memory have a host pointer") {
  const Machine machine;
  CUdeviceptr managed = 0;
  void* host = nullptr;
  REQUIRE(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
  REQUIRE(cuMemHostAlloc(&host, 4096, 0) == CUDA_SUCCESS);
  const auto pinned = reinterpret_cast<CUdeviceptr>(host);
  CHECK(ask<bool>(CU_POINTER_ATTRIBUTE_IS_MANAGED, managed + 4095) == true);
  CHECK(ask<bool>(CU_POINTER_ATTRIBUTE_IS_MANAGED, pinned) == false);
  CHECK(ask<CUdeviceptr>(CU_POINTER_ATTRIBUTE_HOST_POINTER, managed + 5) == managed + 5);
  CHECK(ask<CUdeviceptr>(CU_POINTER_ATTRIBUTE_HOST_POINTER, pinned + 5) == pinned + 5);
  CHECK(ask<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pinned) == CU_MEMORYTYPE_HOST);
  CHECK(ask<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, managed) == current_context());
  CHECK(ask<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, pinned) == current_context());
  REQUIRE(cuMemFree(managed) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeHost(host) == CUDA_SUCCESS);
  expect_unknown(managed);
  expect_unknown(pinned);
}

TEST_CASE("synchronous operations are kept for each allocation") {
  const Machine machine;
  CUdeviceptr plain[2]{};
  for (CUdeviceptr& at : plain) REQUIRE(cuMemAlloc(&at, 4096) == CUDA_SUCCESS);
  const CUmemoryPool pool = make_pool();
  const CUdeviceptr pooled = allocate_from(pool, 4096, nullptr);
  unsigned on = 1;
  for (const CUdeviceptr at : {plain[0], pooled}) {
    CHECK(ask<unsigned>(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at) == 0);
    REQUIRE(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at + 4000) == CUDA_SUCCESS);
    CHECK(ask<unsigned>(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at) == 1);
  }
  CHECK(ask<unsigned>(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, plain[1]) == 0);
  CHECK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, 4096) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_BUFFER_ID, plain[0]) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuPointerSetAttribute(nullptr, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, plain[0]) == CUDA_ERROR_INVALID_VALUE);
  for (const CUdeviceptr at : plain) REQUIRE(cuMemFree(at) == CUDA_SUCCESS);
  REQUIRE(cuMemFree(pooled) == CUDA_SUCCESS);
  REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
}

TEST_CASE("a freed pointer is unknown, also where its heap keeps the memory") {
  const Machine machine;
  const CUmemoryPool pool = make_pool();
  cuuint64_t keep = UINT64_MAX;
  REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep) == CUDA_SUCCESS);
  const CUdeviceptr pooled = allocate_from(pool, 4096, nullptr);
  CUdeviceptr plain[2]{};
  for (CUdeviceptr& at : plain) REQUIRE(cuMemAlloc(&at, 4096) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(pooled, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemFree(plain[0]) == CUDA_SUCCESS);
  CUdeviceptr base = 0;
  for (const CUdeviceptr at : {pooled, plain[0]}) {
    expect_unknown(at);
    CHECK(cuMemGetAddressRange(&base, nullptr, at) == CUDA_ERROR_NOT_FOUND);
  }
  REQUIRE(cuMemFree(plain[1]) == CUDA_SUCCESS);
  expect_unknown(4096);
  REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
}

TEST_CASE("only memory of cuMemAlloc can be shared between processes") {
  const Machine machine;
  CUipcMemHandle ipc{};
  CUdeviceptr plain = 0;
  CUdeviceptr pooled = 0;
  REQUIRE(cuMemAlloc(&plain, 4096) == CUDA_SUCCESS);
  REQUIRE(cuMemAllocAsync(&pooled, 4096, nullptr) == CUDA_SUCCESS);
  const auto handle = create(kPage);
  const CUdeviceptr mapped = map(handle, kPage);
  CHECK(cuIpcGetMemHandle(&ipc, plain) == CUDA_SUCCESS);
  CHECK(cuIpcGetMemHandle(&ipc, pooled) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuIpcGetMemHandle(&ipc, mapped) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemFree(pooled) == CUDA_SUCCESS);
  unmap(mapped, kPage);
  REQUIRE(cuMemRelease(handle) == CUDA_SUCCESS);
}

TEST_CASE("pointers are known by their allocation") {
  const Machine machine;
  CUdeviceptr at = 0;
  REQUIRE(cuMemAlloc(&at, 3000) == CUDA_SUCCESS);
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  REQUIRE(cuMemGetAddressRange(&base, &bytes, at + 2999) == CUDA_SUCCESS);
  CHECK(base == at);
  CHECK(bytes == 3000);
  unsigned type = 0;
  REQUIRE(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at) == CUDA_SUCCESS);
  CHECK(type == CU_MEMORYTYPE_DEVICE);
  CHECK(cuMemFree(at + 512) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemFree(at) == CUDA_SUCCESS);
  CHECK(cuMemFree(at) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 4096) == CUDA_ERROR_INVALID_VALUE);
}
