// SPDX-License-Identifier: Apache-2.0
// Which contexts have a heap, and what happens to it when they end; on simcuda.
#include "interpose/session/heaps.h"

#include <cuda.h>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "catch.h"
#include "machine.h"

using namespace stalloc;
using namespace stalloc::test;

namespace {

constexpr std::size_t kMiB = 1 << 20;

// Work of device 0 touches memory that it has no access to.
void fail_device() {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr at = 0;
  REQUIRE(cuMemCreate(&handle, 2 * kMiB, &properties, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemAddressReserve(&at, 2 * kMiB, 0, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemMap(at, 2 * kMiB, 0, handle, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD8Async(at, 1, kMiB, CU_STREAM_LEGACY) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
  REQUIRE(cuMemUnmap(at, 2 * kMiB) == CUDA_SUCCESS);
  REQUIRE(cuMemRelease(handle) == CUDA_SUCCESS);
  REQUIRE(cuMemAddressFree(at, 2 * kMiB) == CUDA_SUCCESS);
}

// A plan of device 0 without slots.
plan::Plan plan_of_two_pages() {
  plan::Plan plan;
  plan::DevicePlan& placed = plan.devices.emplace_back();
  placed.granularity = 2 * kMiB;
  placed.handles = {4 * kMiB};
  placed.views = {{.bytes = 4 * kMiB, .handles = {0}}};
  placed.physical_bytes = 4 * kMiB;
  return plan;
}

CUresult refuse_peers(CUdeviceptr at, std::size_t bytes, const CUmemAccessDesc* access, std::size_t count) {
  if (count > 1) return CUDA_ERROR_OUT_OF_MEMORY;
  return reinterpret_cast<decltype(&cuMemSetAccess)>(cuda_driver::symbol("cuMemSetAccess"))(at, bytes, access, count);
}

// The program's last release of the primary context comes while the library has a reference to it.
Heaps* heaps_of_release = nullptr;
CUresult retain_and_let_release(CUcontext* primary, CUdevice device) {
  const CUresult result = cuDevicePrimaryCtxRetain(primary, device);
  if (Heaps* heaps = std::exchange(heaps_of_release, nullptr)) {
    CHECK(cuDevicePrimaryCtxRelease(device) == CUDA_SUCCESS);
    heaps->primary_released(device);
  }
  return result;
}

}  // namespace

TEST_CASE("a created context is not served, and nobody makes a primary one for it", "[session][heaps]") {
  const Machine machine;
  CUcontext own = nullptr;
  REQUIRE(create_context(&own) == CUDA_SUCCESS);
  REQUIRE(machine.primary_state() == 0);
  const std::uint64_t id = machine.cuda.current_context_id();
  for (int i = 0; i < 3; ++i) REQUIRE(machine.heaps->find_or_create(own) == nullptr);
  REQUIRE(machine.primary_state() == 0);
  CUcontext next = nullptr;
  REQUIRE(create_context(&next) == CUDA_SUCCESS);
  REQUIRE(machine.cuda.current_context_id() == id + 1);  // none was made and ended meanwhile
  REQUIRE(cuCtxDestroy(next) == CUDA_SUCCESS);
  REQUIRE(cuCtxDestroy(own) == CUDA_SUCCESS);
}

TEST_CASE("a created context beside the primary one is not served, the primary one is", "[session][heaps]") {
  const Machine machine;
  const CUcontext primary = machine.enter();
  CUcontext own = nullptr;
  REQUIRE(create_context(&own) == CUDA_SUCCESS);
  REQUIRE(machine.heaps->find_or_create(own) == nullptr);
  REQUIRE(machine.heaps->find(own) == nullptr);
  REQUIRE(cuCtxSetCurrent(primary) == CUDA_SUCCESS);
  serve::Heap* heap = machine.heaps->find_or_create(primary);
  REQUIRE(heap != nullptr);
  REQUIRE(machine.heaps->find(primary) == heap);
  REQUIRE(cuCtxSetCurrent(own) == CUDA_SUCCESS);
  REQUIRE(machine.heaps->find_or_create(own) == nullptr);
  REQUIRE(cuCtxDestroy(own) == CUDA_SUCCESS);
  machine.heaps->context_released(own);
  REQUIRE(cuCtxSetCurrent(primary) == CUDA_SUCCESS);
  REQUIRE(machine.heaps->find_or_create(primary) == heap);
}

TEST_CASE("a heap ends with its context, however that ends", "[session][heaps]") {
  for (const bool reset : {true, false}) {
    const Machine machine;
    const CUcontext primary = machine.enter();
    serve::Heap* heap = machine.heaps->find_or_create(primary);
    REQUIRE(heap != nullptr);
    const auto at = heap->allocate_sync(5 * kMiB);
    REQUIRE(at);
    REQUIRE(machine.heaps->find_owner(*at) == heap);
    machine.heaps->primary_released(0);  // not the last one
    machine.heaps->context_released(primary);
    REQUIRE(machine.heaps->find(primary) == heap);
    if (reset) {
      machine.heaps->before_primary_reset(0);
      REQUIRE(cuDevicePrimaryCtxReset(0) == CUDA_SUCCESS);
      machine.heaps->after_primary_reset(0);
    } else {
      REQUIRE(cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS);
      machine.heaps->primary_released(0);
    }
    REQUIRE(heap->is_closed());
    REQUIRE(machine.heaps->find(primary) == nullptr);
    REQUIRE(machine.heaps->find_owner(*at) == nullptr);
    REQUIRE(machine.heaps->find_device(*at) == 0);
    REQUIRE_FALSE(heap->find_live(*at));
    REQUIRE(heap->free_sync(*at) == CUDA_ERROR_INVALID_VALUE);
    const CUcontext again = machine.enter();
    REQUIRE(machine.heaps->find_or_create(again) == nullptr);  // served once a process
    REQUIRE(machine.free_bytes() == machine.total_bytes());
    if (reset) REQUIRE(cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS);
  }
}

TEST_CASE("a heap ends with its context when the library has the last reference for a moment", "[session][heaps]") {
  const Replaced retain("cuDevicePrimaryCtxRetain", &retain_and_let_release);
  const Machine machine;
  const CUcontext primary = machine.enter();
  REQUIRE(machine.heaps->find_or_create(primary) != nullptr);
  CUcontext own = nullptr;
  REQUIRE(create_context(&own) == CUDA_SUCCESS);
  heaps_of_release = machine.heaps.get();
  CHECK(machine.heaps->find_or_create(own) == nullptr);
  CHECK(machine.primary_state() == 0);
  CHECK(machine.heaps->find(primary) == nullptr);
  REQUIRE(cuCtxDestroy(own) == CUDA_SUCCESS);
}

TEST_CASE("a failed device is reset, and all memory is there again", "[session][heaps]") {
  const Machine machine;
  const CUcontext primary = machine.enter();
  serve::Heap* heap = machine.heaps->find_or_create(primary);
  REQUIRE(heap != nullptr);
  REQUIRE(heap->allocate_sync(5 * kMiB));
  fail_device();
  machine.heaps->before_primary_reset(0);
  REQUIRE(cuDevicePrimaryCtxReset(0) == CUDA_SUCCESS);
  machine.heaps->after_primary_reset(0);
  REQUIRE(heap->is_closed());
  machine.enter();
  REQUIRE(machine.free_bytes() == machine.total_bytes());
  REQUIRE(cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS);
}

TEST_CASE("threads allocate and free while another resets their device", "[session][heaps]") {
  for (int round = 0; round < 10; ++round) {
    const Machine machine;
    const CUcontext primary = machine.enter();
    std::atomic<int> served{0};
    std::atomic<bool> over{false};
    std::vector<std::thread> threads;
    for (int number = 0; number < 3; ++number) {
      threads.emplace_back([&machine, &served, &over, primary, number] {
        cuCtxSetCurrent(primary);
        for (int i = 0; !over; ++i) {
          serve::Heap* heap = machine.heaps->find_or_create(primary);
          const std::size_t bytes = static_cast<std::size_t>(1 + (i * 7 + number) % 20) * 100'000;
          const bool plain = number == 0;
          const auto at = heap == nullptr ? std::nullopt
                          : plain         ? heap->allocate_sync(bytes)
                                          : heap->allocate(bytes, make_stream_key(nullptr, number == 2), nullptr);
          if (!at) continue;
          serve::Heap* owner = machine.heaps->find_owner(*at);
          if (owner != nullptr) (void)owner->find_live(*at + 100);
          if (owner != nullptr && !plain) (void)owner->free_async(*at, make_stream_key(nullptr, number == 2));
          if (owner != nullptr && plain) (void)owner->free_sync(*at);
          ++served;
        }
      });
    }
    while (served < 100) std::this_thread::yield();
    machine.heaps->before_primary_reset(0);
    REQUIRE(cuDevicePrimaryCtxReset(0) == CUDA_SUCCESS);
    machine.heaps->after_primary_reset(0);
    over = true;
    for (std::thread& thread : threads) thread.join();
    REQUIRE(cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS);
    machine.enter();
    REQUIRE(machine.free_bytes() == machine.total_bytes());
  }
}

TEST_CASE("a stream's clock is found by its name, for as long as the stream lives", "[session][heaps][events]") {
  Machine machine;
  const CUcontext primary = machine.enter();
  const auto key = [](CUstream stream) { return make_stream_key(stream, false); };
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(machine.heaps->stream_clock(key(stream)) == nullptr);  // no heap yet
  REQUIRE(machine.heaps->stream_clock(key(nullptr)) == nullptr);
  serve::Heap* heap = machine.heaps->find_or_create(primary);
  REQUIRE(heap != nullptr);
  serve::StreamClock* clock = machine.heaps->stream_clock(key(stream));
  REQUIRE(clock != nullptr);
  REQUIRE(&clock->all() == &heap->clocks());
  REQUIRE(machine.heaps->clocks(heap->clocks().id()) == &heap->clocks());
  REQUIRE(machine.heaps->stream_clock(key(stream)) == clock);
  serve::StreamClock* legacy = machine.heaps->stream_clock(key(nullptr));
  REQUIRE(legacy != nullptr);
  REQUIRE(legacy != clock);
  serve::StreamClock* mine = machine.heaps->stream_clock(make_stream_key(nullptr, true));
  serve::StreamClock* others = nullptr;
  std::thread([&] {
    REQUIRE(cuCtxSetCurrent(primary) == CUDA_SUCCESS);
    others = machine.heaps->stream_clock(make_stream_key(nullptr, true));
  }).join();
  REQUIRE(others != nullptr);
  REQUIRE(mine != others);

  SECTION("the default streams of another context are others") {
    CUcontext own = nullptr;
    REQUIRE(create_context(&own) == CUDA_SUCCESS);
    REQUIRE(machine.heaps->stream_clock(key(nullptr)) == nullptr);
    CUstream foreign = nullptr;
    REQUIRE(cuStreamCreate(&foreign, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(machine.heaps->stream_clock(key(foreign)) == nullptr);
    REQUIRE(machine.heaps->stream_clock(key(stream)) == clock);  // whatever is current
    REQUIRE(cuCtxDestroy(own) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(primary) == CUDA_SUCCESS);
    // The handle may come back, as another stream of this context.
    machine.heaps->stream_destroyed(foreign);
    CUstream next = nullptr;
    REQUIRE(cuStreamCreate(&next, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(machine.heaps->stream_clock(key(next)) != nullptr);
    REQUIRE(cuStreamDestroy(next) == CUDA_SUCCESS);
  }
  SECTION("a handle that comes back is another stream") {
    clock->raise(5, 77);
    machine.heaps->stream_destroyed(stream);
    REQUIRE_FALSE(clock->is_for(key(stream)));
    REQUIRE(cuStreamDestroy(stream) == CUDA_SUCCESS);
    CUstream next = nullptr;
    REQUIRE(cuStreamCreate(&next, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
    REQUIRE(next == stream);
    serve::StreamClock* fresh = machine.heaps->stream_clock(key(next));
    REQUIRE(fresh != nullptr);
    REQUIRE(fresh->ordered_after(5) == 0);
  }
  SECTION("the end of the context is the end of its streams") {
    machine.heaps->before_primary_reset(0);
    REQUIRE(cuDevicePrimaryCtxReset(0) == CUDA_SUCCESS);
    machine.heaps->after_primary_reset(0);
    machine.enter();
    CUstream next = nullptr;
    REQUIRE(cuStreamCreate(&next, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(machine.heaps->stream_clock(key(next)) == nullptr);
    REQUIRE(machine.heaps->stream_clock(key(nullptr)) == nullptr);
  }
}

TEST_CASE("a plan gives memory back for a call that names its device, whatever context is current",
          "[session][heaps]") {
  const Machine machine(plan_of_two_pages());
  const CUcontext primary = machine.enter();
  REQUIRE(machine.heaps->find_or_create(primary) != nullptr);
  const std::size_t before = machine.free_bytes();
  REQUIRE(cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
  CHECK_FALSE(machine.heaps->make_room(before, 1));
  CHECK(machine.heaps->make_room(before, 0));
  REQUIRE(cuCtxSetCurrent(primary) == CUDA_SUCCESS);
  CHECK(machine.free_bytes() == before + 4 * kMiB);
}

TEST_CASE("a plan whose memory the driver keeps from a peer is not served", "[session][heaps]") {
  const bool refused = GENERATE(true, false);
  std::optional<Replaced> refuses;
  if (refused) refuses.emplace("cuMemSetAccess", &refuse_peers);
  const Machine machine(plan_of_two_pages());
  const CUcontext primary = machine.enter();
  const std::size_t before = machine.free_bytes();
  CHECK(machine.heaps->grant_access(0, 1) == CUDA_SUCCESS);  // there is no heap yet
  const serve::Heap* heap = machine.heaps->find_or_create(primary);
  CHECK((heap == nullptr) == refused);
  CHECK((machine.free_bytes() == before) == refused);
}
