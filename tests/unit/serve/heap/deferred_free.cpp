// SPDX-License-Identifier: Apache-2.0
// The latest free is deferred: its block serves the next request of its size on its stream.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "catch.h"
#include "fake_driver.h"
#include "heaps.h"
#include "interpose/serve/heap/heap.h"
#include "plan/online/online_policy.h"

using namespace stalloc;
using namespace stalloc::test;
using serve::Heap;
using serve::kMaxStreams;
using stalloc::make_stream_key;
using stalloc::StreamKey;

namespace {

constexpr std::uint64_t kSize = 1000;  // rounded up to 1024 bytes

struct Fixture : HeapFixture {
  // Allocates three adjacent blocks, frees the first and then the last, and returns the last. Best fit would choose the
  // first again.
  CUdeviceptr free_last_of_three(StreamKey key) {
    const CUdeviceptr first = allocate(kSize, key);
    allocate(kSize, key);
    const CUdeviceptr last = allocate(kSize, key);
    REQUIRE(first < last);
    allocate(kSize, key);
    free(first, key);
    free(last, key);
    return last;
  }
};

}  // namespace

TEST_CASE("the block freed last serves the next request of its size on its stream", "[serve][deferred_free]") {
  Fixture f;
  const CUdeviceptr last = f.free_last_of_three(f.stream);
  REQUIRE(f.heap->statistics().dynamic_live == 2 * kSize);
  const auto counted = f.heap->statistics().dynamic_requests;
  REQUIRE(f.allocate(kSize + 20, f.stream) == last);
  REQUIRE(f.heap->statistics().dynamic_live == 3 * kSize + 20);
  REQUIRE(f.heap->statistics().dynamic_requests == counted + 1);
  REQUIRE(f.heap->pool_use(nullptr).used == 3 * kSize + 20);
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  REQUIRE(find_range(*f.heap, last, &base, &bytes));
  REQUIRE(bytes == kSize + 20);
}

TEST_CASE("the block freed last cannot be freed or found", "[serve][deferred_free]") {
  Fixture f;
  const CUdeviceptr last = f.free_last_of_three(f.stream);
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  REQUIRE_FALSE(find_range(*f.heap, last, &base, &bytes));
  REQUIRE(f.heap->free_async(last, f.stream) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(f.heap->free_sync(last) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("any other request can get the bytes of the block freed last", "[serve][deferred_free]") {
  Fixture f;
  const CUdeviceptr all = f.allocate(kPage, f.stream);
  const auto ordered_calls = f.driver.order_calls();
  f.free(all, f.stream);
  REQUIRE(f.allocate(kPage / 2, f.stream) == all);
  REQUIRE(f.heap->statistics().physical == kPage);
  REQUIRE(f.driver.order_calls() == ordered_calls);
}

TEST_CASE("another stream gets the block freed last only after the free", "[serve][deferred_free]") {
  Fixture f;
  const StreamKey user = GENERATE(0, 1) == 0 ? f.other : make_stream_key(nullptr, false);
  f.allocate(kPage, user);
  const CUdeviceptr block = f.allocate(32 * kPage, f.stream);
  const Moment use = f.driver.work(f.stream);
  f.free(block, f.stream);
  REQUIRE(f.allocate(32 * kPage, user) == block);
  REQUIRE(f.driver.is_ordered(user, use));
}

TEST_CASE("a stream with a destroyed stream's handle gets the block freed last only after the free",
          "[serve][deferred_free]") {
  Fixture f;
  f.allocate(kPage, f.other);
  const CUdeviceptr block = f.allocate(32 * kPage, f.stream);
  const Moment use = f.driver.work(f.stream);
  f.free(block, f.stream);
  f.heap->stream_destroyed(f.stream.handle);
  f.driver.destroy_stream(f.stream.handle);
  const StreamKey reused{f.driver.new_stream(), 0};
  REQUIRE(reused == f.stream);
  REQUIRE(f.allocate(32 * kPage, reused) == block);
  REQUIRE(f.driver.is_ordered(reused, use));
}

TEST_CASE("a stream's ordinal is not assigned to another while its last free is pending", "[serve][deferred_free]") {
  Fixture f;
  const bool by_free = GENERATE(false, true);
  const CUdeviceptr later = f.allocate(kSize, f.stream);
  f.free(f.allocate(kSize, f.stream), f.stream);
  f.driver.finish_all_work();
  REQUIRE(f.heap->free_sync(f.allocate(kSize, f.stream)) == CUDA_SUCCESS);  // nothing is pending on any stream
  for (int i = 1; i < kMaxStreams; ++i) {
    const StreamKey busy{f.driver.new_stream(), 0};
    const CUdeviceptr block = f.allocate(kSize, busy);
    f.driver.work(busy);
    f.free(block, busy);
  }
  const CUdeviceptr block = f.allocate(32 * kPage, f.stream);
  const Moment use = f.driver.work(f.stream);
  f.free(block, f.stream);
  const StreamKey newcomer{f.driver.new_stream(), 0};
  if (by_free) f.free(later, newcomer);
  const auto address = f.heap->allocate(32 * kPage, newcomer, nullptr);
  REQUIRE((address != block || f.driver.is_ordered(newcomer, use)));
}

TEST_CASE("the block freed last is not served while a user of an earlier free may still work on it",
          "[serve][deferred_free]") {
  Fixture f;
  const StreamKey third{f.driver.new_stream(), 0};
  f.allocate(kSize, third);
  const CUdeviceptr block = f.allocate(kSize, f.stream);
  const Moment use = f.driver.work(f.other);
  REQUIRE(f.heap->free_with_user(block, f.stream, f.other) == CUDA_SUCCESS);
  REQUIRE(f.allocate(kSize, f.stream) == block);
  f.allocate(kSize, third);
  f.free(block, third);
  REQUIRE((f.allocate(kSize, third) != block || f.driver.is_ordered(third, use)));
}

TEST_CASE("a trim includes the block freed last", "[serve][deferred_free]") {
  Fixture f;
  f.free(f.allocate(kSize, f.stream), f.stream);
  synchronize(*f.heap, f.driver);
  REQUIRE(f.heap->trim() == kPage);
  REQUIRE(f.heap->statistics().physical == 0);
}

TEST_CASE("on a thread's own stream an event is recorded at each free, also the last", "[serve][deferred_free]") {
  Fixture f;
  const StreamKey own = make_stream_key(nullptr, true);
  const CUdeviceptr block = f.allocate(32 * kPage, own);
  const auto before = f.driver.order_calls();
  REQUIRE(f.heap->free_async(block, own, /*context_is_current=*/true) == CUDA_SUCCESS);
  REQUIRE(f.driver.order_calls() == before + 1);
}

TEST_CASE("a free on another context's default stream waits for an event", "[serve][deferred_free]") {
  Fixture f;
  const StreamKey legacy = make_stream_key(nullptr, false);
  const CUdeviceptr block = f.allocate(kSize, legacy);
  f.driver.push_context(FakeDriver::other_context());
  const auto before = f.driver.order_calls();
  f.free(block, legacy);
  REQUIRE(f.driver.order_calls() == before + 1);
  f.driver.pop_context();
}

TEST_CASE("under capture, the block freed last is not served", "[serve][deferred_free]") {
  Fixture f;
  f.free_last_of_three(f.stream);
  f.driver.set_capturing(f.stream.handle, true);
  REQUIRE_FALSE(f.heap->allocate(kSize, f.stream, nullptr));
  f.driver.set_capturing(f.stream.handle, false);
}

TEST_CASE("large blocks are placed again each time", "[serve][deferred_free]") {
  FakeDriver driver(std::size_t{2} << 20, std::size_t{4} << 30);
  const StreamKey stream{driver.new_stream(), 0};
  std::string why;
  const auto heap = Heap::create(driver, 0, nullptr, FakeDriver::context(), {}, &why);
  constexpr std::uint64_t kLarge = plan::OnlinePolicy{}.deferred_free_bytes + (std::uint64_t{2} << 20);
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(heap->allocate(kLarge, stream, nullptr).value_or(0));
  REQUIRE(heap->free_async(blocks[0], stream) == CUDA_SUCCESS);
  REQUIRE(heap->free_async(blocks[2], stream) == CUDA_SUCCESS);
  REQUIRE(heap->allocate(kLarge, stream, nullptr) == blocks[0]);
}
