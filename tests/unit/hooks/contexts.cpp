// SPDX-License-Identifier: Apache-2.0
// The end of a heap with its context, and access for peers.
#include <cuda.h>

#include "catch.h"
#include "machine.h"

using namespace stalloc;
using namespace stalloc::hooks;
using namespace stalloc::test;

namespace {

CUcontext primary;
bool was_known;  // when CUDA's own function was called

int refusals;  // of access for peers, before the driver grants it
CUresult grant_later(CUdeviceptr at, std::size_t bytes, const CUmemAccessDesc* access, std::size_t count) {
  if (count > 1 && refusals > 0) return --refusals, CUDA_ERROR_OUT_OF_MEMORY;
  return reinterpret_cast<decltype(&cuMemSetAccess)>(cuda_driver::symbol("cuMemSetAccess"))(at, bytes, access, count);
}

// Asks CUDA itself: to the program, served memory is none that it mapped.
bool is_accessible(CUdeviceptr at, int device) {
  const auto ask = reinterpret_cast<decltype(&cuMemGetAccess)>(find_function("cuMemGetAccess"));
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  unsigned long long flags = 0;
  REQUIRE(ask(&flags, &location, at) == CUDA_SUCCESS);
  return flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

// Access of device 1 to device 0's default pool.
CUresult set_access_of_second(CUmemAccess_flags flags) {
  CUmemoryPool pool = nullptr;
  REQUIRE(cuDeviceGetDefaultMemPool(&pool, 0) == CUDA_SUCCESS);
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 1}, flags};
  return cuMemPoolSetAccess(pool, &access, 1);
}

}  // namespace

TEST_CASE("a heap is unreachable before CUDA resets its device", "[hooks][contexts]") {
  const Machine machine;
  (void)machine.heap();
  primary = machine.context;
  was_known = true;
  Behind reset(
      Hook::cuDevicePrimaryCtxReset_v2, +[](CUdevice) {
        was_known = Session::known_heaps()->find(primary) != nullptr;
        return CUDA_SUCCESS;
      });
  CHECK(contexts::primary_reset(reset.call(), 0) == CUDA_SUCCESS);
  CHECK_FALSE(was_known);
  CHECK(Session::known_heaps()->find(primary) == nullptr);
}

TEST_CASE("requests are refused while their context is reset, and then served by CUDA", "[hooks][contexts]") {
  const Machine machine;
  (void)machine.heap();
  static CUresult plain;
  static CUresult ordered;
  Behind reset(
      Hook::cuDevicePrimaryCtxReset_v2, +[](CUdevice) {
        CUdeviceptr at = 0;
        plain = cuMemAlloc(&at, 1 << 20);
        ordered = cuMemAllocAsync(&at, 1 << 20, nullptr);
        return CUDA_SUCCESS;
      });
  CHECK(contexts::primary_reset(reset.call(), 0) == CUDA_SUCCESS);
  CHECK(plain == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(ordered == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CUdeviceptr at = 0;
  REQUIRE(cuMemAllocAsync(&at, 1 << 20, nullptr) == CUDA_SUCCESS);
  CHECK(cuMemFreeAsync(at, nullptr) == CUDA_SUCCESS);
}

TEST_CASE("the release of a primary context ends its heap only where it was the last", "[hooks][contexts]") {
  const Machine machine;
  (void)machine.heap();
  Heaps& heaps = *Session::known_heaps();
  CUcontext again = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&again, 0) == CUDA_SUCCESS);
  REQUIRE(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
  CHECK(heaps.find(machine.context) != nullptr);
  Behind refused(
      Hook::cuDevicePrimaryCtxRelease_v2, +[](CUdevice) { return CUDA_ERROR_INVALID_CONTEXT; });
  CHECK(contexts::primary_release(refused.call(), 0) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(heaps.find(machine.context) != nullptr);
  REQUIRE(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
  CHECK(heaps.find(machine.context) == nullptr);
}

TEST_CASE("the end of a green context ends the heap of a primary context that only it held", "[hooks][contexts]") {
  const Machine machine;
  (void)machine.heap();
  Heaps& heaps = *Session::known_heaps();
  CUdevResource resource{};
  REQUIRE(cuDeviceGetDevResource(0, &resource, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS);
  CUdevResourceDesc description = nullptr;
  REQUIRE(cuDevResourceGenerateDesc(&description, &resource, 1) == CUDA_SUCCESS);
  CUgreenCtx greens[2];
  for (CUgreenCtx& green : greens) {
    REQUIRE(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_SUCCESS);
  }
  REQUIRE(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
  CHECK(heaps.find(machine.context) != nullptr);
  REQUIRE(cuGreenCtxDestroy(greens[0]) == CUDA_SUCCESS);
  CHECK(heaps.find(machine.context) != nullptr);
  Behind refused(
      Hook::cuGreenCtxDestroy, +[](CUgreenCtx) { return CUDA_ERROR_INVALID_CONTEXT; });
  CHECK(contexts::green_destroy(refused.call(), greens[1]) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(heaps.find(machine.context) != nullptr);
  REQUIRE(cuGreenCtxDestroy(greens[1]) == CUDA_SUCCESS);
  CHECK(heaps.find(machine.context) == nullptr);
}

TEST_CASE("peers are granted the memory of the context that they enable", "[hooks][contexts]") {
  const Machine machine;
  serve::Heap& heap = machine.heap();
  CUdeviceptr at = 0;
  REQUIRE(cuMemAllocAsync(&at, 1 << 20, nullptr) == CUDA_SUCCESS);
  REQUIRE(heap.owns(at));
  REQUIRE_FALSE(is_accessible(at, 1));
  CUcontext second = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&second, 1) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(second) == CUDA_SUCCESS);
  Behind refused(
      Hook::cuCtxEnablePeerAccess, +[](CUcontext, unsigned) { return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED; });
  CHECK(contexts::enable_peer(refused.call(), machine.context, 0) == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  CHECK_FALSE(is_accessible(at, 1));
  REQUIRE(cuCtxEnablePeerAccess(machine.context, 0) == CUDA_SUCCESS);
  CHECK(is_accessible(at, 1));
  CHECK(machine.cuda.current_context() == second);
  REQUIRE(cuCtxDisablePeerAccess(machine.context) == CUDA_SUCCESS);
  REQUIRE(cuDevicePrimaryCtxRelease_v2(1) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(machine.context) == CUDA_SUCCESS);
}

TEST_CASE("where a peer is refused access to served memory, the program gets the error and may try again",
          "[hooks][contexts]") {
  const Replaced grants("cuMemSetAccess", &grant_later);
  const Machine machine;
  CUdeviceptr at = 0;
  REQUIRE(cuMemAllocAsync(&at, 1 << 20, nullptr) == CUDA_SUCCESS);
  REQUIRE(machine.heap().owns(at));
  CUcontext second = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&second, 1) == CUDA_SUCCESS);
  const bool of_pool = GENERATE(true, false);
  const auto open_to_second = [&] {
    if (of_pool) return set_access_of_second(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    REQUIRE(cuCtxSetCurrent(second) == CUDA_SUCCESS);
    const CUresult result = cuCtxEnablePeerAccess(machine.context, 0);
    REQUIRE(cuCtxSetCurrent(machine.context) == CUDA_SUCCESS);
    return result;
  };
  refusals = 1000;
  CHECK(open_to_second() == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_FALSE(is_accessible(at, 1));
  refusals = 0;
  CHECK(open_to_second() == CUDA_SUCCESS);
  CHECK(is_accessible(at, 1));
  CHECK(set_access_of_second(CU_MEM_ACCESS_FLAGS_PROT_NONE) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(second) == CUDA_SUCCESS);
  CHECK(cuCtxDisablePeerAccess(machine.context) == (of_pool ? CUDA_ERROR_PEER_ACCESS_NOT_ENABLED : CUDA_SUCCESS));
  REQUIRE(cuDevicePrimaryCtxRelease_v2(1) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(machine.context) == CUDA_SUCCESS);
}

TEST_CASE("a peer gets access once idle memory was given back", "[hooks][contexts]") {
  const Replaced grants("cuMemSetAccess", &grant_later);
  const Machine machine;
  serve::Heap& heap = machine.heap();
  CUdeviceptr at = 0;
  CUdeviceptr idle = 0;
  REQUIRE(cuMemAllocAsync(&at, 1 << 20, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemAllocAsync(&idle, 64 << 20, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(idle, nullptr) == CUDA_SUCCESS);
  REQUIRE(heap.held_bytes() >= 64 << 20);
  refusals = 1;
  CHECK(set_access_of_second(CU_MEM_ACCESS_FLAGS_PROT_READWRITE) == CUDA_SUCCESS);
  CHECK(is_accessible(at, 1));
  CHECK(heap.held_bytes() < 64 << 20);
  CHECK(set_access_of_second(CU_MEM_ACCESS_FLAGS_PROT_NONE) == CUDA_SUCCESS);
}
