// SPDX-License-Identifier: Apache-2.0
// Which pools are served, for which device, and which devices may access their memory, on simcuda.
#include "interpose/session/pools.h"

#include <cuda.h>

#include <optional>

#include "catch.h"
#include "machine.h"

using namespace stalloc;
using namespace stalloc::test;

namespace {

constexpr std::size_t kMiB = 1 << 20;

CUmemPoolProps ordinary() {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  return properties;
}

CUmemoryPool named(std::uintptr_t name) { return reinterpret_cast<CUmemoryPool>(name); }

// A pool of the driver's that the heaps were told of.
CUmemoryPool make_pool(const Machine& machine, const CUmemPoolProps& properties) {
  CUmemoryPool pool = nullptr;
  REQUIRE(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
  machine.heaps->pool_created(pool, properties);
  return pool;
}

void make_current(const Machine& machine, CUmemoryPool pool) {
  REQUIRE(cuDeviceSetMemPool(0, pool) == CUDA_SUCCESS);
  machine.heaps->current_pool_changed(0);
}

void destroy(const Machine& machine, CUmemoryPool pool) {
  machine.heaps->pool_destroyed(pool, [&] { return cuMemPoolDestroy(pool) == CUDA_SUCCESS; });
}

CUmemoryPool default_pool() {
  CUmemoryPool pool = nullptr;
  REQUIRE(cuDeviceGetDefaultMemPool(&pool, 0) == CUDA_SUCCESS);
  return pool;
}

// The pool for which a request counts: null for the device's default pool, nothing if it is not served.
using Booked = std::optional<CUmemoryPool>;
const Booked kNotServed;
const Booked kOwn{nullptr};

Booked from_named(const Machine& machine, const serve::Heap& heap, CUmemoryPool pool) {
  return machine.heaps->resolve_pool(heap, &pool) ? Booked(pool) : kNotServed;
}
Booked from_current(const Machine& machine, const serve::Heap& heap) {
  CUmemoryPool pool = nullptr;
  return machine.heaps->resolve_current_pool(heap, &pool) ? Booked(pool) : kNotServed;
}

// A byte written by device 1.
CUresult write_from_peer(const Machine& machine, CUdeviceptr at) {
  CUcontext current = nullptr;
  REQUIRE(cuCtxGetCurrent(&current) == CUDA_SUCCESS);
  machine.enter(1);
  CUresult result = cuMemsetD8Async(at, 1, kMiB, CU_STREAM_LEGACY);
  if (result == CUDA_SUCCESS) result = cuCtxSynchronize();
  REQUIRE(cuDevicePrimaryCtxReset(1) == CUDA_SUCCESS);
  REQUIRE(cuDevicePrimaryCtxRelease(1) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(current) == CUDA_SUCCESS);
  return result;
}

void give_access(const Machine& machine, CUmemoryPool pool) {
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 1}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  REQUIRE(cuMemPoolSetAccess(pool, &access, 1) == CUDA_SUCCESS);
  machine.heaps->pool_access_granted(pool, access.location);
}

}  // namespace

TEST_CASE("only ordinary pools of device memory are served", "[session][pools]") {
  Pools pools;
  std::uintptr_t name = 0x1000;
  const auto device_of = [&](const CUmemPoolProps& properties) {
    pools.add_created(named(name), properties);
    return pools.device_of(named(name++));
  };
  REQUIRE(device_of(ordinary()) == 0);
  CUmemPoolProps exportable = ordinary();
  exportable.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  REQUIRE(device_of(exportable) == Pools::kNone);
  CUmemPoolProps limited = ordinary();
  limited.maxSize = 1 << 30;
  REQUIRE(device_of(limited) == Pools::kNone);
  CUmemPoolProps of_host = ordinary();
  of_host.location.type = CU_MEM_LOCATION_TYPE_HOST;
  REQUIRE(device_of(of_host) == Pools::kNone);
  CUmemPoolProps from_the_future = ordinary();
  from_the_future.reserved[sizeof from_the_future.reserved - 1] = 1;
  REQUIRE(device_of(from_the_future) == Pools::kNone);
  REQUIRE(pools.device_of(nullptr) == Pools::kNone);
  REQUIRE(pools.device_of(named(name)) == Pools::kNone);  // imported, for instance
  REQUIRE_FALSE(pools.find(named(name)));
}

TEST_CASE("a pool is forgotten when it is destroyed, but not if destroying it fails", "[session][pools]") {
  Pools pools;
  pools.add_created(named(0x1000), ordinary());
  REQUIRE(pools.device_of(named(0x1000)) == 0);
  pools.begin_destroy(named(0x1000));
  REQUIRE(pools.device_of(named(0x1000)) == Pools::kNone);
  REQUIRE(pools.counting_device(named(0x1000)) == 0);
  REQUIRE_FALSE(pools.end_destroy(named(0x1000), false));
  REQUIRE(pools.device_of(named(0x1000)) == 0);
  pools.begin_destroy(named(0x1000));
  REQUIRE(pools.end_destroy(named(0x1000), true));
  REQUIRE_FALSE(pools.find(named(0x1000)));
  REQUIRE(pools.counting_device(named(0x1000)) == Pools::kNone);
  pools.add_created(named(0x1000), ordinary());
  pools.begin_destroy(named(0x1000));
  pools.add_created(named(0x1000), ordinary());  // another one, once CUDA has destroyed the first
  REQUIRE_FALSE(pools.end_destroy(named(0x1000), true));
  REQUIRE(pools.device_of(named(0x1000)) == 0);
  pools.refuse(named(0x1000));
  REQUIRE(pools.device_of(named(0x1000)) == Pools::kNone);
  REQUIRE(pools.counting_device(named(0x1000)) == 0);
  pools.add_default(named(0x1000), 0);  // a refused one stays so
  REQUIRE(pools.find(named(0x1000)) == Pools::kNone);
}

TEST_CASE("a heap has what the program's own pools keep idle", "[session][pools]") {
  const Machine machine;
  serve::Heap* heap = machine.heaps->find_or_create(machine.enter());
  REQUIRE(heap != nullptr);
  CUmemPoolProps exportable = ordinary();
  exportable.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  const CUmemoryPool pool = make_pool(machine, exportable);
  REQUIRE(from_named(machine, *heap, pool) == kNotServed);
  cuuint64_t everything = ~cuuint64_t{0};
  REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &everything) == CUDA_SUCCESS);
  CUdeviceptr at = 0;
  REQUIRE(cuMemAllocFromPoolAsync(&at, machine.total_bytes() / 4 * 3, pool, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(at, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
  REQUIRE(machine.free_bytes() < machine.total_bytes() / 2);
  const auto served = heap->allocate(machine.total_bytes() / 2, make_stream_key(nullptr, false), nullptr);
  REQUIRE(served);
  REQUIRE(heap->free_async(*served, make_stream_key(nullptr, false)) == CUDA_SUCCESS);
  destroy(machine, pool);
}

TEST_CASE("requests count for their pool", "[session][pools]") {
  const Machine machine;
  const serve::Heap& heap = *machine.heaps->find_or_create(machine.enter());
  const CUmemoryPool pool = make_pool(machine, ordinary());
  REQUIRE(from_current(machine, heap) == kOwn);
  REQUIRE(from_named(machine, heap, default_pool()) == kOwn);
  REQUIRE(from_named(machine, heap, pool) == Booked(pool));
  REQUIRE(from_named(machine, heap, nullptr) == kNotServed);
  make_current(machine, pool);
  REQUIRE(from_current(machine, heap) == Booked(pool));
  REQUIRE(from_named(machine, heap, default_pool()) == kOwn);
  REQUIRE(machine.heaps->driver_pool(heap, nullptr) == default_pool());
  REQUIRE(machine.heaps->driver_pool(heap, pool) == pool);
  destroy(machine, pool);
  REQUIRE(from_current(machine, heap) == kOwn);
  REQUIRE(from_named(machine, heap, pool) == kNotServed);
  destroy(machine, default_pool());  // which CUDA refuses
  REQUIRE(from_named(machine, heap, default_pool()) == kOwn);
}

TEST_CASE("a pool that gets the handle of one that is being destroyed keeps its own figures", "[session][pools]") {
  const Machine machine;
  serve::Heap& heap = *machine.heaps->find_or_create(machine.enter());
  const CUmemoryPool pool = make_pool(machine, ordinary());
  const StreamKey legacy = make_stream_key(nullptr, false);
  const auto old = heap.allocate(3 * kMiB, legacy, pool);
  REQUIRE(old);
  machine.heaps->pool_destroyed(pool, [&] {
    machine.heaps->pool_created(pool, ordinary());  // by another thread, once CUDA has destroyed the first
    REQUIRE(heap.allocate(5 * kMiB, legacy, pool));
    return true;
  });
  REQUIRE(machine.heaps->pool_use(pool)->used == 5 * kMiB);
  REQUIRE(heap.free_async(*old, legacy) == CUDA_SUCCESS);
  REQUIRE(machine.heaps->pool_use(pool)->used == 5 * kMiB);
  destroy(machine, pool);
}

TEST_CASE("an exportable or limited pool is not served, whenever it is made current", "[session][pools]") {
  CUmemPoolProps exportable = ordinary();
  exportable.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemPoolProps limited = ordinary();
  limited.maxSize = 64 * kMiB;
  for (const CUmemPoolProps& properties : {exportable, limited}) {
    for (const bool before : {true, false}) {
      const Machine machine;
      const CUcontext primary = machine.enter();
      const CUmemoryPool pool = make_pool(machine, properties);
      if (before) make_current(machine, pool);
      const serve::Heap& heap = *machine.heaps->find_or_create(primary);
      if (!before) make_current(machine, pool);
      REQUIRE(from_current(machine, heap) == kNotServed);
      REQUIRE(from_named(machine, heap, pool) == kNotServed);
      REQUIRE(from_named(machine, heap, default_pool()) == kOwn);
      REQUIRE_FALSE(machine.heaps->pool_use(pool));
      make_current(machine, default_pool());
      REQUIRE(from_current(machine, heap) == kOwn);
      destroy(machine, pool);
    }
  }
}

TEST_CASE("a pool that was made current before there was a heap is found at the first request", "[session][pools]") {
  const Machine machine;
  const CUcontext primary = machine.enter();
  CUmemoryPool pool = nullptr;
  const CUmemPoolProps properties = ordinary();
  REQUIRE(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
  REQUIRE(cuDeviceSetMemPool(0, pool) == CUDA_SUCCESS);
  const serve::Heap& heap = *machine.heaps->find_or_create(primary);
  REQUIRE(from_current(machine, heap) == kNotServed);
  REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
}

TEST_CASE("a peer with access to a served pool reaches what the heap holds, then and later", "[session][pools]") {
  for (const bool before : {true, false}) {
    for (const bool of_device : {true, false}) {
      const Machine machine;
      const CUcontext primary = machine.enter();
      const CUmemoryPool pool = of_device ? default_pool() : make_pool(machine, ordinary());
      if (before) give_access(machine, pool);
      serve::Heap& heap = *machine.heaps->find_or_create(primary);
      const auto early = heap.allocate_sync(3 * kMiB);
      REQUIRE(early);
      if (!before) {
        REQUIRE(write_from_peer(machine, *early) == CUDA_ERROR_ILLEGAL_ADDRESS);
        give_access(machine, pool);
      }
      const auto late = heap.allocate_sync(40 * kMiB);
      REQUIRE(late);
      REQUIRE(write_from_peer(machine, *early) == CUDA_SUCCESS);
      REQUIRE(write_from_peer(machine, *late) == CUDA_SUCCESS);
      const CUmemAccessDesc none{{CU_MEM_LOCATION_TYPE_DEVICE, 1}, CU_MEM_ACCESS_FLAGS_PROT_NONE};
      REQUIRE(cuMemPoolSetAccess(pool, &none, 1) == CUDA_SUCCESS);
      if (!of_device) destroy(machine, pool);
    }
  }
}

TEST_CASE("access that is given to no device ends the serving of a pool", "[session][pools]") {
  const Machine machine;
  const serve::Heap& heap = *machine.heaps->find_or_create(machine.enter());
  const CUmemoryPool pool = make_pool(machine, ordinary());
  machine.heaps->pool_access_granted(pool, {CU_MEM_LOCATION_TYPE_HOST, 0});
  REQUIRE(from_named(machine, heap, pool) == kNotServed);
  REQUIRE(from_current(machine, heap) == kOwn);
  machine.heaps->pool_access_granted(default_pool(), {CU_MEM_LOCATION_TYPE_HOST, 0});
  REQUIRE(from_named(machine, heap, default_pool()) == kNotServed);
  REQUIRE(from_current(machine, heap) == kNotServed);
  destroy(machine, pool);
}
