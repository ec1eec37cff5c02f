// SPDX-License-Identifier: Apache-2.0
// The end of a context while other threads continue: the heap releases everything and serves no request.
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "catch.h"
#include "fake_driver.h"
#include "heaps.h"
#include "interpose/serve/heap/heap.h"
#include "plans.h"

using namespace stalloc;
using namespace stalloc::test;
using serve::Heap;
using stalloc::StreamKey;

namespace {

const plan::DevicePlan& small_plan() {
  static const plan::DevicePlan plan = [] {
    plan::DevicePlan made = plan_of_sizes({1000, 70'000, 512});
    made.body = static_cast<std::uint32_t>(made.slots.size());
    return made;
  }();
  return plan;
}

constexpr CUdeviceptr kServedByCuda = 0x500;

struct Fixture : HeapFixture {
  explicit Fixture(bool planned = false) : HeapFixture(small_options(), planned ? &small_plan() : nullptr) {}

  // Makes requests of every kind and frees some of them, also on another stream and while another stream uses them.
  std::vector<CUdeviceptr> live_tensors() {
    std::vector<CUdeviceptr> live;
    for (int i = 0; i < 20; ++i) {
      live.push_back(*heap->allocate(3 * kPage + 512, stream, nullptr));
      live.push_back(*heap->allocate(1000, stream, nullptr));
      live.push_back(*heap->allocate_sync(2 * kPage));
      const auto freed = heap->allocate(5 * kPage, stream, nullptr);
      REQUIRE(heap->free_async(*freed, stream) == CUDA_SUCCESS);
      live.push_back(*heap->allocate(4 * kPage, other, nullptr));
      const auto used = heap->allocate(2 * kPage, stream, nullptr);
      driver.work(other);
      REQUIRE(heap->free_when_complete(*used, other, stream) == CUDA_SUCCESS);
    }
    heap->note_unplanned(kServedByCuda, 700, nullptr);
    return live;
  }

  void expect_nothing_served(const std::vector<CUdeviceptr>& live) {
    REQUIRE(heap->is_closed());
    REQUIRE_FALSE(heap->allocate(1000, stream, nullptr));
    REQUIRE_FALSE(heap->allocate_sync(1000));
    REQUIRE_FALSE(driver.holds_nothing());  // the addresses stay reserved
    for (const CUdeviceptr at : live) {
      REQUIRE(heap->owns(at));
      REQUIRE_FALSE(heap->find_live(at));
      REQUIRE(heap->free_async(at, stream) == CUDA_ERROR_INVALID_VALUE);
      REQUIRE(heap->free_sync(at) == CUDA_ERROR_INVALID_VALUE);
    }
    REQUIRE(heap->trim() == 0);
    REQUIRE(heap->grant_access(1) == CUDA_SUCCESS);
    heap->stream_destroyed(stream.handle);
    heap->set_sync_memops(live.front(), true);
    expect_nothing_counted();
  }

  // The figures say what was, and that nothing is.
  void expect_nothing_counted() {
    const serve::Statistics statistics = heap->statistics();
    REQUIRE(statistics.live_peak > 0);
    REQUIRE(statistics.physical == 0);
    REQUIRE(statistics.live == 0);
    REQUIRE(statistics.planned_live == 0);
    REQUIRE(statistics.dynamic_live == 0);
    REQUIRE(statistics.unplanned_live == 0);
    REQUIRE(statistics.views == 0);
    const serve::PoolUse pool = heap->pool_use(nullptr);
    REQUIRE(pool.used_high > 0);
    REQUIRE(pool.used == 0);
    REQUIRE(pool.served == 0);
    REQUIRE(pool.reserved == 0);
  }
};

}  // namespace

TEST_CASE("a closed heap has released everything and serves nothing", "[serve][closed]") {
  for (const bool planned : {false, true}) {
    Fixture f(planned);
    const std::vector<CUdeviceptr> live = f.live_tensors();
    REQUIRE(f.heap->close());
    REQUIRE(f.driver.holds_no_memory());
    f.expect_nothing_served(live);
    REQUIRE(f.heap->close());
    f.heap->close_after_context();
    f.heap.reset();
    f.driver.end_events_of(FakeDriver::context());
    REQUIRE(f.driver.is_clean());
  }
}

TEST_CASE("after the end of its context a heap leaves events and streams alone", "[serve][closed]") {
  Fixture f;
  const std::vector<CUdeviceptr> live = f.live_tensors();
  const std::uint64_t before = f.driver.order_calls();
  f.driver.end_events_of(FakeDriver::context());
  f.heap->close_after_context();
  REQUIRE(f.driver.order_calls() == before);
  REQUIRE(f.driver.holds_no_memory());
  f.expect_nothing_served(live);
  REQUIRE(f.driver.order_calls() == before);
}

TEST_CASE("memory that cannot be released before the end of the context is released after it", "[serve][closed]") {
  Fixture f;
  const std::vector<CUdeviceptr> live = f.live_tensors();
  f.driver.fail_at(2, CUDA_ERROR_ILLEGAL_ADDRESS);  // the call that waits for the context
  REQUIRE_FALSE(f.heap->close());
  REQUIRE(f.heap->is_closed());
  REQUIRE_FALSE(f.heap->find_live(live.front()));
  REQUIRE_FALSE(f.driver.holds_no_memory());
  f.heap->close_after_context();
  REQUIRE(f.driver.holds_no_memory());
  f.expect_nothing_served(live);
}

TEST_CASE("threads continue while their heap is closed", "[serve][closed]") {
  for (const bool planned : {false, true}) {
    Fixture f(planned);
    std::atomic<int> rounds{0};
    std::vector<std::thread> threads;
    for (int number = 0; number < 4; ++number) {
      threads.emplace_back([&f, &rounds, number, stream = StreamKey{f.driver.new_stream(), 0}] {
        for (int served = 0; served < 200 || !f.heap->is_closed(); ++served) {
          const std::size_t bytes = static_cast<std::size_t>(1 + (served * 7 + number) % 40) * 5000;
          const auto ordered = f.heap->allocate(bytes, stream, nullptr);
          const auto plain = f.heap->allocate_sync(bytes);
          if (plain) (void)f.heap->find_live(*plain + 100);
          if (served % 50 == 0) f.heap->trim(0);
          if (ordered) (void)f.heap->free_async(*ordered, stream);
          if (plain) (void)f.heap->free_sync(*plain);
          (void)f.heap->statistics();
          ++rounds;
        }
      });
    }
    while (rounds < 400) std::this_thread::yield();
    REQUIRE(f.heap->close());
    for (std::thread& thread : threads) thread.join();
    REQUIRE(f.driver.holds_no_memory());
    f.heap.reset();
    f.driver.end_events_of(FakeDriver::context());
    REQUIRE(f.driver.is_clean());
  }
}
