// SPDX-License-Identifier: Apache-2.0
// Frees that wait for an event: of blocks that other streams use, and on streams of other contexts.
#include "interpose/serve/heap/pending_frees.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "catch.h"
#include "fake_driver.h"
#include "heaps.h"
#include "host_memory.h"
#include "interpose/serve/heap/heap.h"

using namespace stalloc;
using namespace stalloc::test;
using serve::Heap;
using stalloc::make_stream_key;
using stalloc::StreamKey;

namespace {

struct Completion {
  int device;
  CUdeviceptr address;
  StreamKey owner;
};
std::vector<Completion> completions;

serve::HeapOptions options_with_callback() {
  completions.clear();
  serve::HeapOptions options = small_options();
  options.on_free_complete = [](int device, CUdeviceptr address, StreamKey owner) {
    const Plenty plenty;
    completions.push_back({device, address, owner});
  };
  return options;
}

}  // namespace

TEST_CASE("the callback is called once when a free is complete", "[serve][pending_frees]") {
  HeapFixture f(options_with_callback());
  auto& [driver, owner, user, heap] = f;
  const CUdeviceptr first = *heap->allocate(3 * kPage, owner, nullptr);
  const CUdeviceptr second = *heap->allocate(3 * kPage, owner, nullptr);
  const CUdeviceptr third = *heap->allocate(kPage, owner, nullptr);
  driver.work(user);
  REQUIRE(heap->free_when_complete(first, user, owner) == CUDA_SUCCESS);
  REQUIRE(heap->allocate(2 * kPage, owner, nullptr));
  CHECK(completions.empty());
  CHECK(heap->statistics().served_live_peak == 7 * kPage);
  CHECK(heap->statistics().served_in_use_peak == 9 * kPage);
  driver.finish_all_work();
  REQUIRE(heap->allocate(kPage, owner, nullptr));
  REQUIRE(completions.size() == 1);
  CHECK(completions[0].device == 0);
  CHECK(completions[0].address == first);
  CHECK(completions[0].owner == owner);

  // The program ends while work is pending.
  driver.work(user);
  REQUIRE(heap->free_when_complete(second, user, owner) == CUDA_SUCCESS);
  heap->notify_pending_frees_at_exit();
  REQUIRE(completions.size() == 2);
  CHECK(completions[1].address == second);
  driver.finish_all_work();
  REQUIRE(heap->allocate(kPage, owner, nullptr));
  CHECK(completions.size() == 2);

  // Or the context ends.
  driver.work(user);
  REQUIRE(heap->free_when_complete(third, user, owner) == CUDA_SUCCESS);
  heap->close();
  REQUIRE(completions.size() == 3);
  CHECK(completions[2].address == third);
}

TEST_CASE("the callback is called for each free when the host has no memory", "[serve][pending_frees]") {
  HeapFixture f(options_with_callback());
  auto& [driver, owner, user, heap] = f;
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back(*heap->allocate(kPage, owner, nullptr));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    driver.work(user);
    allocations_left = i + 1;
    CHECK(heap->free_when_complete(blocks[i], user, owner) == CUDA_SUCCESS);
    allocations_left = 0;
  }
  driver.finish_all_work();
  REQUIRE(heap->allocate(2 * kPage, owner, nullptr));
  CHECK(completions.size() == blocks.size());
  CHECK(heap->statistics().dynamic_live == 2 * kPage);
}

TEST_CASE("bytes that other streams used are offered to their own stream when that work is complete",
          "[serve][pending_frees]") {
  serve::HeapOptions options = small_options();
  options.policy.small_bytes = kPage;
  HeapFixture f(options);
  auto& [driver, owner, user, heap] = f;
  const CUdeviceptr used = *heap->allocate(512, owner, nullptr);
  REQUIRE(heap->allocate(2 * kPage, user, nullptr));
  driver.work(user);
  REQUIRE(heap->free_when_complete(used, user, owner) == CUDA_SUCCESS);
  REQUIRE(heap->allocate(512, owner, nullptr) != used);
  driver.finish_all_work();
  heap->after_synchronization();
  REQUIRE(heap->allocate(512, owner, nullptr) == used);
}

TEST_CASE("pending frees are queried at some requests, and before memory is mapped", "[serve][pending_frees]") {
  HeapFixture f(small_options());
  auto& [driver, owner, user, heap] = f;
  const CUdeviceptr used = *heap->allocate(4 * kPage, owner, nullptr);
  const CUdeviceptr room = *heap->allocate(16 * kPage, owner, nullptr);
  REQUIRE(heap->free_async(room, owner) == CUDA_SUCCESS);
  driver.work(user);
  REQUIRE(heap->free_when_complete(used, user, owner) == CUDA_SUCCESS);

  constexpr std::uint64_t kRequests = 320;
  const std::uint64_t queries = driver.order_calls();
  for (std::uint64_t i = 0; i < kRequests; ++i) {
    const CUdeviceptr block = *heap->allocate((1 + i % 2) * kPage, owner, nullptr);
    CHECK(heap->free_async(block, owner) == CUDA_SUCCESS);
  }
  CHECK(driver.order_calls() - queries == kRequests / 16);

  const CUdeviceptr block = *heap->allocate(kPage, owner, nullptr);  // queries now, so the next request would not
  CHECK(heap->free_async(block, owner) == CUDA_SUCCESS);
  driver.finish_all_work();
  REQUIRE(heap->allocate(20 * kPage, owner, nullptr) == used);
  CHECK(heap->statistics().physical == 20 * kPage);
}

namespace {

struct Fixture : HeapFixture {
  const StreamKey& owner = stream;
  const StreamKey& slow = other;
  StreamKey fast{driver.new_stream(), 0};

  // Allocates a block and frees it while `user` still works on it.
  CUdeviceptr free_under_work(std::uint64_t bytes, StreamKey user) {
    const auto address = heap->allocate(bytes, owner, nullptr);
    REQUIRE(address);
    driver.work(user);
    REQUIRE(heap->free_when_complete(*address, user, owner) == CUDA_SUCCESS);
    return *address;
  }
  std::uint64_t held() const { return heap->statistics().physical; }
};

}  // namespace

TEST_CASE("a slow stream does not delay frees on others", "[serve][pending_frees]") {
  Fixture f;
  for (int i = 0; i < 20; ++i) f.free_under_work(kPage, f.slow);
  f.free_under_work(8 * kPage, f.fast);
  const std::uint64_t held = f.held();
  f.driver.finish_work_of(f.fast);
  REQUIRE(f.heap->allocate(8 * kPage, f.owner, nullptr));
  REQUIRE(f.held() == held);
}

TEST_CASE("many slow streams do not hide a completed free", "[serve][pending_frees]") {
  Fixture f;
  std::vector<StreamKey> streams;
  for (int i = 0; i < 20; ++i) streams.push_back({f.driver.new_stream(), 0});
  for (const StreamKey& stream : streams) f.free_under_work(kPage, stream);
  f.free_under_work(8 * kPage, f.fast);
  f.driver.finish_work_of(f.fast);
  f.heap->after_synchronization();
  const std::uint64_t held = f.held();
  REQUIRE(f.heap->allocate(8 * kPage, f.owner, nullptr));
  REQUIRE(f.held() == held);
}

TEST_CASE("the host can wait for pending frees", "[serve][pending_frees]") {
  Fixture f;
  f.free_under_work(8 * kPage, f.slow);
  const std::uint64_t held = f.held();
  std::thread device([&] { f.driver.finish_work_of(f.slow); });
  REQUIRE(f.heap->wait_for_pending_frees());
  device.join();
  REQUIRE(f.heap->allocate(8 * kPage, f.owner, nullptr));
  REQUIRE(f.held() == held);
  REQUIRE_FALSE(f.heap->wait_for_pending_frees());  // no free is pending any more
}

TEST_CASE("a free that waits for an event creates none while some are unused", "[serve][pending_frees]") {
  Fixture f;
  const std::size_t events = f.driver.events();
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 20; ++i) f.free_under_work(kPage, f.slow);
    f.driver.finish_all_work();
    REQUIRE(f.heap->wait_for_pending_frees());
    REQUIRE(f.driver.events() == events);
  }
  for (std::size_t i = 0; i <= events; ++i) f.free_under_work(1, f.slow);
  REQUIRE(f.driver.events() == events + 1);
  f.driver.finish_all_work();
  REQUIRE(f.heap->wait_for_pending_frees());
  for (std::size_t i = 0; i <= events; ++i) f.free_under_work(1, f.slow);
  REQUIRE(f.driver.events() == events + 1);
}

TEST_CASE("a stream that is being destroyed is not taken for the next one of its handle", "[serve][pending_frees]") {
  HeapFixture f(small_options());
  auto& [driver, owner, user, heap] = f;
  const CUdeviceptr block = *heap->allocate(kPage, owner, nullptr);
  heap->stream_destroyed(owner.handle);
  // Another thread frees a block of that stream before CUDA has destroyed the stream.
  REQUIRE(heap->free_when_complete(block, user, owner) == CUDA_SUCCESS);
  driver.destroy_stream(owner.handle);
  const StreamKey next{driver.new_stream(FakeDriver::context(), CU_STREAM_DEFAULT), 0};
  REQUIRE(next == owner);
  // What a blocking stream frees is not known to be complete when the stream is.
  const CUdeviceptr other = *heap->allocate(kPage, next, nullptr);
  REQUIRE(heap->free_async(other, next) == CUDA_SUCCESS);
  const serve::StreamClock* const clock = heap->clock(next);
  serve::StreamClock::Snapshot known;
  clock->snapshot(&known);
  REQUIRE(clock->latest_free() > 0);
  REQUIRE(known[clock->ordinal() - 1U] == 0);
}

TEST_CASE("for a request that cannot be served no event is created", "[serve][pending_frees]") {
  Fixture f;
  const std::size_t events = f.driver.events();
  for (std::size_t i = 0; i < events; ++i) f.free_under_work(1, f.slow);
  REQUIRE(f.driver.events() == events);  // all of them are in use
  const std::uint64_t queries = f.driver.memory_queries();
  bool exhausted = false;
  REQUIRE_FALSE(f.heap->allocate(std::uint64_t{1} << 34, f.owner, nullptr, &exhausted));
  REQUIRE(exhausted);
  REQUIRE(f.driver.memory_queries() > queries);  // it was not refused for its size alone
  REQUIRE(f.driver.events() == events);
}

TEST_CASE("the host does not wait on a device that has failed", "[serve][pending_frees]") {
  Fixture f;
  f.free_under_work(kPage, f.slow);
  f.driver.fail_at(1, CUDA_ERROR_ILLEGAL_ADDRESS);
  REQUIRE_FALSE(f.heap->wait_for_pending_frees());
}

TEST_CASE("contexts that end are kept apart from other contexts", "[serve][pending_frees]") {
  FakeDriver driver{kPage};
  serve::PendingFrees frees(driver, 0, FakeDriver::context(), nullptr);
  const StreamKey stream{driver.new_stream(), 0};
  const auto add = [&](CUcontext context, std::uint64_t bytes) {
    serve::PendingFrees::Free free;
    free.entry.bytes = bytes;
    REQUIRE(driver.create_event(&free.event) == CUDA_SUCCESS);
    REQUIRE(driver.record_event(free.event, stream.handle) == CUDA_SUCCESS);
    frees.add(context, stream, free);
  };
  driver.work(stream);
  add(FakeDriver::context(), 1);
  driver.work(stream);
  add(FakeDriver::context(), 2);
  add(FakeDriver::other_context(), 4);
  REQUIRE(frees.bytes() == 7);
  std::vector<std::uint64_t> completed;
  const auto collect = [&] {
    return frees.collect(8, [&](const serve::PendingFrees::Free& free) {
      completed.push_back(free.entry.bytes);
      CHECK((free.event != nullptr) == (free.entry.bytes < 4));  // of the heap's context
    });
  };
  REQUIRE_FALSE(collect());
  REQUIRE(frees.may_complete(1));

  frees.before_context_end(FakeDriver::other_context());
  frees.before_context_end(FakeDriver::other_context());  // by another thread, which releases a reference of its own
  frees.after_context_end(FakeDriver::other_context(), false);
  driver.finish_all_work();
  REQUIRE(collect());
  REQUIRE(completed == std::vector<std::uint64_t>{1, 2});
  REQUIRE_FALSE(frees.may_complete(frees.latest_number()));  // the third event must not be queried

  driver.end_events_of(FakeDriver::other_context());
  frees.after_context_end(FakeDriver::other_context(), true);
  REQUIRE(collect());
  REQUIRE(completed == std::vector<std::uint64_t>{1, 2, 4});
  REQUIRE(frees.empty());
  REQUIRE(frees.bytes() == 0);
}

TEST_CASE("the event of a complete free of another context is kept for a free that may wait",
          "[serve][pending_frees]") {
  FakeDriver driver{kPage};
  serve::PendingFrees frees(driver, 0, FakeDriver::context(), nullptr);
  const StreamKey stream{driver.new_stream(), 0};
  CUcontext const other = FakeDriver::other_context();
  const auto complete_one = [&] {
    serve::PendingFrees::Free free;
    free.entry.bytes = 1;
    REQUIRE(driver.create_event(&free.event) == CUDA_SUCCESS);
    REQUIRE(driver.record_event(free.event, stream.handle) == CUDA_SUCCESS);
    frees.add(other, stream, free);
    REQUIRE(frees.collect(8, [](const serve::PendingFrees::Free& each) { CHECK(each.event == nullptr); }));
    return free.event;
  };
  const std::size_t events = driver.events();
  const CUevent first = complete_one();
  const CUevent second = complete_one();
  REQUIRE(driver.events() == events + 2);
  CHECK(frees.take_spent(FakeDriver::context()) == nullptr);
  frees.before_context_end(other);
  CHECK(frees.take_spent(other) == nullptr);
  frees.after_context_end(other, false);
  CHECK(frees.take_spent(other) == first);
  CHECK(driver.destroy_event(first) == CUDA_SUCCESS);
  SECTION("or ends with its context") {
    frees.before_context_end(other);
    frees.after_context_end(other, true);
    CHECK(frees.take_spent(other) == nullptr);
    CHECK(driver.destroy_event(second) == CUDA_SUCCESS);
  }
  SECTION("or is destroyed with the heap's") { frees.clear(true); }
  CHECK(driver.events() == events);
}

TEST_CASE("a free with a user of another context is refused", "[serve][pending_frees]") {
  Fixture f;
  const auto block = f.heap->allocate(kPage, f.owner, nullptr);
  REQUIRE(block);
  const StreamKey foreign{f.driver.new_stream(FakeDriver::other_context()), 0};
  REQUIRE(f.heap->free_with_user(*block, f.owner, foreign) == CUDA_ERROR_NOT_SUPPORTED);
  REQUIRE(f.heap->find_live(*block));
  REQUIRE(f.heap->free_with_user(*block, f.owner, f.owner) == CUDA_SUCCESS);
}

TEST_CASE("bytes of more pairs than there are marks are free when all work is complete", "[serve][pending_frees]") {
  Fixture f;
  std::thread([&] {  // its stream is one on which no other thread can record an event
    const StreamKey own = make_stream_key(nullptr, true);
    const auto block = f.heap->allocate(kPage, own, nullptr);
    f.driver.work(own);
    REQUIRE(f.heap->free_async(*block, own, true) == CUDA_SUCCESS);
  })
      .join();
  constexpr int kPairs = 60;
  std::vector<CUdeviceptr> blocks;
  std::vector<StreamKey> users;
  for (int i = 0; i < kPairs; ++i) {
    users.push_back({f.driver.new_stream(), 0});
    blocks.push_back(f.heap->allocate(2 * kPage, f.owner, nullptr).value());
  }
  for (std::size_t i = 0; i < kPairs; ++i) {
    f.driver.work(users[i]);
    REQUIRE(f.heap->free_with_user(blocks[i], f.owner, users[i]) == CUDA_SUCCESS);
  }
  synchronize(*f.heap, f.driver);
  REQUIRE(f.heap->trim() > 0);
  REQUIRE(f.held() == 0);
}

TEST_CASE("a stream waits for work after a free only if there is no more memory", "[serve][pending_frees]") {
  constexpr std::uint64_t kDevice = 32 * kPage;
  FakeDriver driver(kPage, kDevice);
  std::string why;
  const auto heap = Heap::create(driver, 0, nullptr, FakeDriver::context(), small_options(), &why);
  const StreamKey t{driver.new_stream(), 0};
  const StreamKey s{driver.new_stream(), 0};
  const auto freed = heap->allocate(12 * kPage, t, nullptr);
  REQUIRE(freed);
  REQUIRE(heap->free_async(*freed, t) == CUDA_SUCCESS);  // only one stream uses memory, so no event is recorded
  const Moment later = driver.work(t);
  REQUIRE(heap->allocate(12 * kPage, s, nullptr));
  REQUIRE_FALSE(driver.is_ordered(s, later));
  REQUIRE(heap->allocate(12 * kPage, s, nullptr));
  REQUIRE(driver.is_ordered(s, later));
}
