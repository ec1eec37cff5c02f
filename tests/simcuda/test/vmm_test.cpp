// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include "child.h"
#include "tests/simcuda/test/machine.h"

using namespace simcuda_test;

TEST_CASE("a handle mapped twice has its bytes in both places") {
  const Machine machine;
  const auto handle = create(2 * kPage);
  const CUdeviceptr first = map(handle, 2 * kPage);
  const CUdeviceptr second = map(handle, 2 * kPage);
  REQUIRE(first != second);
  REQUIRE(cuMemsetD32(first + kPage, 0xabcd1234, 1) == CUDA_SUCCESS);
  CHECK(read_word(second + kPage) == 0xabcd1234);
  CHECK(physical(first + 5).handle == physical(second + 5).handle);
  CHECK(physical(second + kPage + 5).offset == kPage + 5);
  CHECK(physical(second + kPage + 5).bytes == kPage - 5);

  // The handle is released, but the memory lives until the last mapping goes.
  const std::uint64_t free_before = free_bytes();
  REQUIRE(cuMemRelease(handle) == CUDA_SUCCESS);
  unmap(first, 2 * kPage);
  CHECK(read_word(second + kPage) == 0xabcd1234);
  CHECK(free_bytes() == free_before);
  unmap(second, 2 * kPage);
  CHECK(free_bytes() == free_before + 2 * kPage);
}

TEST_CASE("a stitched view joins handles in any order") {
  const Machine machine;
  const auto one = create(kPage);
  const auto two = create(kPage);
  CUdeviceptr home = 0;
  CUdeviceptr view = 0;
  REQUIRE(cuMemAddressReserve(&home, 2 * kPage, 0, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemAddressReserve(&view, 2 * kPage, 0, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemMap(home, kPage, 0, one, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemMap(home + kPage, kPage, 0, two, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemMap(view, kPage, 0, two, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemMap(view + kPage, kPage, 0, one, 0) == CUDA_SUCCESS);
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  REQUIRE(cuMemSetAccess(home, 2 * kPage, &access, 1) == CUDA_SUCCESS);
  REQUIRE(cuMemSetAccess(view, 2 * kPage, &access, 1) == CUDA_SUCCESS);
  // One fill across the seam of the view ends up at both ends of the home range.
  REQUIRE(cuMemsetD32(view + kPage - 4, 77, 2) == CUDA_SUCCESS);
  CHECK(read_word(home + 2 * kPage - 4) == 77);
  CHECK(read_word(home) == 77);
  unmap(view, 2 * kPage);
  unmap(home, 2 * kPage);
  REQUIRE(cuMemRelease(one) == CUDA_SUCCESS);
  REQUIRE(cuMemRelease(two) == CUDA_SUCCESS);
}

TEST_CASE("mapping refuses what the driver refuses") {
  const Machine machine;
  const auto handle = create(2 * kPage);
  CUdeviceptr at = 0;
  REQUIRE(cuMemAddressReserve(&at, 4 * kPage, 0, 0, 0) == CUDA_SUCCESS);
  CHECK(cuMemMap(at, kPage, kPage, handle, 0) == CUDA_ERROR_NOT_SUPPORTED);              // offset
  CHECK(cuMemMap(at, kPage, 0, handle, 0) == CUDA_ERROR_NOT_SUPPORTED);                  // part of a handle
  CHECK(cuMemMap(at + 512, 2 * kPage, 0, handle, 0) == CUDA_ERROR_INVALID_VALUE);        // not on a page
  CHECK(cuMemMap(at + 3 * kPage, 2 * kPage, 0, handle, 0) == CUDA_ERROR_INVALID_VALUE);  // past the reservation
  REQUIRE(cuMemMap(at, 2 * kPage, 0, handle, 0) == CUDA_SUCCESS);
  CHECK(cuMemMap(at + kPage, 2 * kPage, 0, handle, 0) == CUDA_ERROR_INVALID_VALUE);  // taken
  CHECK(cuMemUnmap(at, kPage) == CUDA_ERROR_INVALID_VALUE);                          // half a mapping
  CHECK(cuMemAddressFree(at, 4 * kPage) == CUDA_ERROR_INVALID_VALUE);                // still mapped
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CHECK(cuMemSetAccess(at, 3 * kPage, &access, 1) == CUDA_ERROR_INVALID_VALUE);  // not all mapped
  REQUIRE(cuMemUnmap(at, 2 * kPage) == CUDA_SUCCESS);
  CHECK(cuMemAddressFree(at, 2 * kPage) == CUDA_ERROR_INVALID_VALUE);  // not what was reserved
  REQUIRE(cuMemAddressFree(at, 4 * kPage) == CUDA_SUCCESS);
  REQUIRE(cuMemRelease(handle) == CUDA_SUCCESS);
  CHECK(cuMemRelease(handle) == CUDA_ERROR_INVALID_VALUE);
  const CUmemAllocationProp wanted = properties();
  CUmemGenericAllocationHandle odd = 0;
  CHECK(cuMemCreate(&odd, kPage / 2, &wanted, 0) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a device touches only what it was given access to, and the error sticks") {
  const auto devices = GENERATE(std::vector<int>{}, std::vector<int>{1});
  const Machine machine;
  const auto handle = create(kPage);
  const CUdeviceptr at = map(handle, kPage, devices);
  REQUIRE(cuMemsetD32Async(at, 1, 1, nullptr) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
  CUdeviceptr other = 0;
  CHECK(cuMemAlloc(&other, 512) == CUDA_ERROR_ILLEGAL_ADDRESS);
  unmap(at, kPage);
  REQUIRE(cuMemRelease(handle) == CUDA_SUCCESS);
}

TEST_CASE("memory of cuMemAlloc is open to a peer that asked") {
  const Machine machine;
  CUdeviceptr at = 0;
  REQUIRE(cuMemAlloc(&at, 4096) == CUDA_SUCCESS);
  CUcontext home = nullptr;
  CUcontext peer = nullptr;
  REQUIRE(cuCtxGetCurrent(&home) == CUDA_SUCCESS);
  REQUIRE(cuDevicePrimaryCtxRetain(&peer, 1) == CUDA_SUCCESS);
  REQUIRE(cuCtxPushCurrent(peer) == CUDA_SUCCESS);
  const bool enable = GENERATE(true, false);
  if (enable) REQUIRE(cuCtxEnablePeerAccess(home, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD32Async(at, 3, 1, nullptr) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == (enable ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS));
  if (enable) REQUIRE(cuCtxDisablePeerAccess(home) == CUDA_SUCCESS);
  REQUIRE(cuCtxPopCurrent(nullptr) == CUDA_SUCCESS);
  REQUIRE(cuDevicePrimaryCtxReset(1) == CUDA_SUCCESS);
  REQUIRE(cuDevicePrimaryCtxRelease(1) == CUDA_SUCCESS);
  REQUIRE(cuMemFree(at) == CUDA_SUCCESS);
}

TEST_CASE("a context that closes its access to a peer leaves others of its device theirs") {
  const Machine machine;
  CUdeviceptr at = 0;
  REQUIRE(cuMemAlloc(&at, 4096) == CUDA_SUCCESS);
  CUcontext home = nullptr;
  REQUIRE(cuCtxGetCurrent(&home) == CUDA_SUCCESS);
  {
    const Peer peer;
    REQUIRE(cuCtxEnablePeerAccess(home, 0) == CUDA_SUCCESS);
    CUcontext other = make_context(1);
    REQUIRE(cuCtxEnablePeerAccess(home, 0) == CUDA_SUCCESS);
    REQUIRE(cuCtxDisablePeerAccess(home) == CUDA_SUCCESS);
    REQUIRE(cuCtxDestroy(other) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD32Async(at, 3, 1, nullptr) == CUDA_SUCCESS);
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    REQUIRE(cuCtxDisablePeerAccess(home) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD32Async(at, 3, 1, nullptr) == CUDA_SUCCESS);
    CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
  }
  REQUIRE(cuMemFree(at) == CUDA_SUCCESS);
}

TEST_CASE("a device has no more memory than its size") {
  const Machine machine;
  const std::uint64_t all = free_bytes();
  const auto handle = create(all - kPage);
  const CUmemAllocationProp wanted = properties();
  CUmemGenericAllocationHandle more = 0;
  CHECK(cuMemCreate(&more, 2 * kPage, &wanted, 0) == CUDA_ERROR_OUT_OF_MEMORY);
  CUdeviceptr at = 0;
  CHECK(cuMemAlloc(&at, 4 * kPage) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuMemAllocAsync(&at, 4 * kPage, nullptr) == CUDA_ERROR_OUT_OF_MEMORY);
  REQUIRE(cuMemRelease(handle) == CUDA_SUCCESS);
  CHECK(free_bytes() == all);
  REQUIRE(cuMemAlloc(&at, 4 * kPage) == CUDA_SUCCESS);
  REQUIRE(cuMemFree(at) == CUDA_SUCCESS);
}

TEST_CASE("calls fail when they are told to") {
  const Machine machine;
  const CUmemAllocationProp wanted = properties();
  CUmemGenericAllocationHandle handle = 0;
  SimcudaCounters before{};
  simcuda_counters(0, &before);

  simcuda_fail(SIMCUDA_CREATE, 2, 0);
  REQUIRE(cuMemCreate(&handle, kPage, &wanted, 0) == CUDA_SUCCESS);
  CUmemGenericAllocationHandle second = 0;
  CHECK(cuMemCreate(&second, kPage, &wanted, 0) == CUDA_ERROR_OUT_OF_MEMORY);
  REQUIRE(cuMemCreate(&second, kPage, &wanted, 0) == CUDA_SUCCESS);

  CUdeviceptr at = 0;
  REQUIRE(cuMemAddressReserve(&at, kPage, 0, 0, 0) == CUDA_SUCCESS);
  simcuda_fail(SIMCUDA_MAP, 1, 1);
  CHECK(cuMemMap(at, kPage, 0, handle, 0) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuMemMap(at, kPage, 0, handle, 0) == CUDA_ERROR_OUT_OF_MEMORY);
  simcuda_fail(SIMCUDA_MAP, 0, 0);
  REQUIRE(cuMemMap(at, kPage, 0, handle, 0) == CUDA_SUCCESS);

  CUdeviceptr plain = 0;
  simcuda_fail(SIMCUDA_ALLOC, 1, 0);
  CHECK(cuMemAllocAsync(&plain, 512, nullptr) == CUDA_ERROR_OUT_OF_MEMORY);
  REQUIRE(cuMemAlloc(&plain, 512) == CUDA_SUCCESS);
  REQUIRE(cuMemFree(plain) == CUDA_SUCCESS);

  SimcudaCounters after{};
  simcuda_counters(0, &after);
  CHECK(after.creates == before.creates + 2);
  CHECK(after.maps == before.maps + 1);
  CHECK(after.allocs == before.allocs + 1);
  CHECK(after.handle_bytes == before.handle_bytes + 2 * kPage);
  unmap(at, kPage);
  REQUIRE(cuMemRelease(handle) == CUDA_SUCCESS);
  REQUIRE(cuMemRelease(second) == CUDA_SUCCESS);
}

TEST_CASE("a handle made for it is shared by a file descriptor, and its memory counts where it was made") {
  const Machine machine;
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle handle = 0;
  REQUIRE(cuMemCreate(&handle, kPage, &wanted, 0) == CUDA_SUCCESS);
  const CUdeviceptr own = map(handle, kPage);
  const std::uint64_t free_before = free_bytes();
  int file = -1;
  REQUIRE(cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS);
  CUmemGenericAllocationHandle imported = 0;
  void* const shared = reinterpret_cast<void*>(static_cast<std::intptr_t>(file));
  REQUIRE(cuMemImportFromShareableHandle(&imported, shared, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == CUDA_SUCCESS);
  REQUIRE(close(file) == 0);
  const CUdeviceptr other = map(imported, kPage);
  REQUIRE(cuMemsetD32(own, 4711, 1) == CUDA_SUCCESS);
  CHECK(read_word(other) == 4711);
  CHECK(free_bytes() == free_before);
  unmap(own, kPage);
  REQUIRE(cuMemRelease(handle) == CUDA_SUCCESS);
  CHECK(read_word(other) == 4711);
  unmap(other, kPage);
  REQUIRE(cuMemRelease(imported) == CUDA_SUCCESS);

  const auto private_one = create(kPage);
  CHECK(cuMemExportToShareableHandle(&file, private_one, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemImportFromShareableHandle(&imported, nullptr, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
        CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemRelease(private_one) == CUDA_SUCCESS);
}

TEST_CASE("a child of fork has no CUDA") {
  const Machine machine;
  CHECK(stalloc::test::holds_in_child([] {
    CUdeviceptr at = 0;
    return cuMemAlloc(&at, 512) == CUDA_ERROR_NOT_INITIALIZED && cuInit(0) == CUDA_ERROR_NOT_INITIALIZED;
  }));
}
