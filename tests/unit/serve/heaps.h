// SPDX-License-Identifier: Apache-2.0
// Heaps for tests.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "catch.h"
#include "fake_driver.h"
#include "interpose/serve/heap/heap.h"
#include "plans.h"

namespace stalloc::test {

inline std::unique_ptr<serve::Heap> plan_only_heap(serve::Driver& driver, const plan::DevicePlan& plan,
                                                   std::string* why, serve::LogFunction log = nullptr) {
  serve::HeapOptions options;
  options.dynamic = false;
  return serve::Heap::create(driver, 0, &plan, FakeDriver::context(), options, why, log);
}

// Finds the live range that contains an address. False: there is none.
inline bool find_range(serve::Heap& heap, CUdeviceptr address, CUdeviceptr* base, std::size_t* bytes) {
  const std::optional<serve::LiveRange> range = heap.find_live(address);
  if (!range) return false;
  *base = range->base;
  *bytes = range->bytes;
  return true;
}

// The program synchronizes with the context, as the hooks see it.
inline void synchronize(serve::Heap& heap, FakeDriver& driver) {
  const std::uint64_t number = heap.clocks().latest_number();
  driver.finish_all_work();
  heap.clocks().mark_all_complete(number);
  heap.after_synchronization();
}

// The default options, scaled to the small pages and requests of the tests.
inline serve::HeapOptions small_options() {
  serve::HeapOptions options;
  options.policy.small_bytes = kPage / 4;
  options.policy.smallest_stitched = kPage;
  options.policy.elapsed_per_mapping = 1;  // so that places do not depend on time
  return options;
}

// A heap with the options for tests on a fake driver, and two streams.
struct HeapFixture {
  FakeDriver driver;
  StreamKey stream{driver.new_stream(), 0};
  StreamKey other{driver.new_stream(), 0};
  std::unique_ptr<serve::Heap> heap;

  explicit HeapFixture(const serve::HeapOptions& options = small_options(), const plan::DevicePlan* plan = nullptr,
                       std::uint64_t device_bytes = std::uint64_t{1} << 34, serve::LogFunction log = nullptr)
      : driver(kPage, device_bytes) {
    std::string why;
    heap = serve::Heap::create(driver, 0, plan, FakeDriver::context(), options, &why, log);
    REQUIRE(heap);
  }

  CUdeviceptr allocate(std::uint64_t bytes, StreamKey key) {
    const auto address = heap->allocate(bytes, key, nullptr);
    REQUIRE(address);
    REQUIRE(heap->owns(*address));
    return *address;
  }
  void free(CUdeviceptr address, StreamKey key) { REQUIRE(heap->free_async(address, key) == CUDA_SUCCESS); }
};

}  // namespace stalloc::test
