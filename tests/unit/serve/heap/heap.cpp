// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/heap/heap.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "catch.h"
#include "fake_driver.h"
#include "heaps.h"
#include "plans.h"

using namespace stalloc;
using namespace stalloc::test;
using serve::Heap;
using stalloc::make_stream_key;
using stalloc::StreamKey;

namespace {

constexpr std::uint64_t kKiB = 1024;

int logs = 0;
std::string last_log;
void count_log(serve::LogKind /*kind*/, const char* text) {
  ++logs;
  last_log = text;
}

CUmemoryPool pool_named(std::uintptr_t name) { return reinterpret_cast<CUmemoryPool>(name); }

struct Fixture {
  explicit Fixture(plan::DevicePlan device_plan) : plan(std::move(device_plan)) {
    if (plan.prologue + plan.body == 0) plan.body = static_cast<std::uint32_t>(plan.slots.size());
    logs = 0;
    heap = plan_only_heap(driver, plan, &why, count_log);
    REQUIRE(heap);
  }

  // Returns the offset in the reservation at which the request is served; -1: it is not served.
  std::int64_t allocate(std::uint64_t bytes, StreamKey stream) {
    const std::optional<CUdeviceptr> address = heap->allocate(bytes, stream, nullptr);
    return address ? static_cast<std::int64_t>(*address - base()) : -1;
  }
  CUresult free(std::int64_t offset, StreamKey stream) {
    return heap->free_async(base() + static_cast<CUdeviceptr>(offset), stream);
  }
  CUdeviceptr base() const { return CUdeviceptr{1} << 44; }

  FakeDriver driver{kPage};
  plan::DevicePlan plan;
  std::string why;
  std::unique_ptr<Heap> heap;
  StreamKey s{driver.new_stream(), 0};
  StreamKey t{driver.new_stream(), 0};
};

// One handle of two pages, two slots that overlap, and one after them.
plan::DevicePlan overlapping_plan() {
  plan::DevicePlan plan = plan_of_handles({2});
  add_slot(&plan, 4 * kKiB, 0);
  add_slot(&plan, 8 * kKiB, 0);
  add_slot(&plan, 1000, 64 * kKiB);
  plan.slots[0].event_on_free = true;
  return plan;
}

}  // namespace

TEST_CASE("requests are served at their planned places, body after body", "[serve][heap]") {
  Fixture f(plan_of_sizes({1000, 70'000, 512}));
  for (int repetition = 0; repetition < 3; ++repetition) {
    REQUIRE(f.allocate(1000, f.s) == 0);
    REQUIRE(f.allocate(70'000, f.s) == 1024);
    REQUIRE(f.allocate(512, f.s) == 1024 + 70'144);
    for (const std::int64_t offset : {0, 1024, 1024 + 70'144}) REQUIRE(f.free(offset, f.s) == CUDA_SUCCESS);
  }
  const serve::Statistics figures = f.heap->statistics();
  REQUIRE(figures.planned_requests == 9);
  REQUIRE(figures.planned_live == 0);
  REQUIRE(figures.served_live_peak == 71'512);
  REQUIRE(figures.refused_slots == 0);
  REQUIRE(figures.physical == 2 * kPage);
  REQUIRE(figures.mapping_calls_at_start == 3);
  REQUIRE(figures.mapping_calls_after_start == 0);
}

TEST_CASE("a slot whose bytes are still taken is refused, and the next slot is not", "[serve][heap]") {
  Fixture f(overlapping_plan());
  REQUIRE(f.allocate(4 * kKiB, f.s) == 0);
  REQUIRE(f.allocate(8 * kKiB, f.s) == -1);
  REQUIRE(f.allocate(1000, f.s) == 64 * kKiB);
  REQUIRE(f.free(0, f.s) == CUDA_SUCCESS);
  REQUIRE(f.allocate(4 * kKiB, f.s) == 0);
  REQUIRE(f.free(0, f.s) == CUDA_SUCCESS);
  REQUIRE(f.allocate(8 * kKiB, f.s) == 0);
  REQUIRE(f.heap->statistics().refused_slots == 1);
}

TEST_CASE("requests of a resumed program before its first step get the places of the plan", "[serve][heap]") {
  // Weights, a step that creates five states, and the body.
  plan::DevicePlan plan = plan_of_sizes({1000, 4096, 2000, 3000, 512, 512, 512, 4096});
  plan.prologue = 7;
  plan.body = 1;
  for (const std::size_t stays : {0, 2, 3, 4, 5, 6}) plan.slots[stays].upper = 8;
  Fixture f(std::move(plan));
  REQUIRE(f.allocate(1000, f.s) == 0);
  REQUIRE(f.allocate(3000, f.s) == 1024 + 4096 + 2048);
  REQUIRE(f.allocate(2000, f.s) == 1024 + 4096);
  REQUIRE(f.allocate(2000, f.s) == -1);
  REQUIRE(f.heap->statistics().spare_slots == 2);
  REQUIRE(f.heap->statistics().planned_requests == 3);
  REQUIRE(f.allocate(4096, f.s) == 1024);  // the step, as planned, except for the states
  REQUIRE(f.allocate(4096, f.s) == -1);
  REQUIRE(f.allocate(4096, f.s) == 1024 + 4096 + 2048 + 3072 + 3 * 512);
  REQUIRE(f.free(1024 + 4096, f.s) == CUDA_SUCCESS);
  REQUIRE(f.allocate(2000, f.s) == -1);  // the body has begun
  REQUIRE(f.heap->statistics().refused_slots == 0);
}

TEST_CASE("while requests come in the plan's order, spare slots are left to their own requests", "[serve][heap]") {
  plan::DevicePlan plan = plan_of_sizes({512, 512, 512, 512, 512, 512, 512, 512, 4096});
  plan.prologue = 8;
  plan.body = 1;
  plan.slots[1].offset = 0;  // the first two slots share their place, the others live through the body
  for (std::size_t stays = 2; stays < 8; ++stays) plan.slots[stays].upper = 9;
  Fixture f(std::move(plan));
  REQUIRE(f.allocate(512, f.s) == 0);
  REQUIRE(f.allocate(512, f.s) == -1);
  for (std::int64_t slot = 2; slot < 8; ++slot) REQUIRE(f.allocate(512, f.s) == slot * 512);
  REQUIRE(f.heap->statistics().spare_slots == 0);
  REQUIRE(f.heap->statistics().refused_slots == 1);
}

TEST_CASE("bytes taken through one view are taken in every other", "[serve][heap]") {
  plan::DevicePlan plan = plan_of_handles({1, 1, 1});
  add_view(&plan, {2, 0});
  add_slot(&plan, kPage + 512, 0, 1);       // handle 2 and the first bytes of handle 0
  add_slot(&plan, 512, 0);                  // those first bytes
  add_slot(&plan, 1024, 512);               // the bytes after them
  add_slot(&plan, 2048, 3 * kPage - 2048);  // the end of handle 2
  Fixture f(plan);
  REQUIRE(f.allocate(kPage + 512, f.s) == static_cast<std::int64_t>(3 * kPage));
  REQUIRE(f.allocate(512, f.s) == -1);
  REQUIRE(f.allocate(1024, f.s) == 512);
  REQUIRE(f.allocate(2048, f.s) == -1);
}

TEST_CASE("a request of zero bytes is not served and does not move the cursor", "[serve][heap]") {
  Fixture f(overlapping_plan());
  REQUIRE(f.allocate(0, f.s) == -1);
  REQUIRE(f.allocate(4 * kKiB, f.s) == 0);
}

TEST_CASE("only live ranges can be freed, and only once", "[serve][heap]") {
  Fixture f(overlapping_plan());
  REQUIRE(f.free(0, f.s) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(f.allocate(4 * kKiB, f.s) == 0);
  REQUIRE(f.free(512, f.s) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(f.heap->free_sync(f.base() + 512) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(f.free(0, f.s) == CUDA_SUCCESS);
  REQUIRE(f.free(0, f.s) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(f.heap->free_sync(f.base()) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("the heap owns the addresses of the arena", "[serve][heap]") {
  Fixture f(overlapping_plan());
  REQUIRE(f.heap->owns(f.base()));
  REQUIRE(f.heap->owns(f.base() + 2 * kPage - 1));
  REQUIRE_FALSE(f.heap->owns(f.base() + 2 * kPage));
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  REQUIRE_FALSE(find_range(*f.heap, f.base() + 64 * kKiB, &base, &bytes));
  f.allocate(4 * kKiB, f.s);
  f.allocate(8 * kKiB, f.s);
  REQUIRE(f.allocate(1000, f.s) == 64 * kKiB);
  REQUIRE(find_range(*f.heap, f.base() + 64 * kKiB + 999, &base, &bytes));
  REQUIRE(base == f.base() + 64 * kKiB);
  REQUIRE(bytes == 1000);
  REQUIRE_FALSE(find_range(*f.heap, f.base() + 64 * kKiB + 1000, &base, &bytes));
}

TEST_CASE("bytes freed on one stream are served on another after the free", "[serve][heap]") {
  Fixture f(overlapping_plan());
  REQUIRE(f.allocate(4 * kKiB, f.s) == 0);
  const Moment use = f.driver.work(f.s);
  REQUIRE(f.free(0, f.s) == CUDA_SUCCESS);
  REQUIRE(f.allocate(8 * kKiB, f.t) == 0);
  REQUIRE(f.driver.is_ordered(f.t, use));
  REQUIRE(f.heap->statistics().waits == 1);
}

TEST_CASE("a stream waits for the planned event of a free, and for no later one", "[serve][heap]") {
  plan::DevicePlan plan = overlapping_plan();
  plan.slots[0].event_on_free = GENERATE(false, true);
  Fixture f(plan);
  REQUIRE(f.allocate(4 * kKiB, f.s) == 0);
  REQUIRE(f.free(0, f.s) == CUDA_SUCCESS);
  const Moment later = f.driver.work(f.s);
  REQUIRE(f.allocate(8 * kKiB, f.t) == (plan.slots[0].event_on_free ? 0 : -1));
  REQUIRE_FALSE(f.driver.is_ordered(f.t, later));
}

TEST_CASE("each of many small blocks of a page has a free that another stream can wait for", "[serve][heap]") {
  constexpr std::int64_t kBlock = plan::kUnitBytes;
  constexpr std::int64_t kBlocks = kPage / kBlock;
  plan::DevicePlan plan = plan_of_handles({1});
  for (std::int64_t i = 0; i < 2 * kBlocks; ++i) {
    add_slot(&plan, kBlock, static_cast<std::uint64_t>(i % kBlocks * kBlock)).event_on_free = i < kBlocks;
  }
  Fixture f(plan);
  for (std::int64_t i = 0; i < kBlocks; ++i) REQUIRE(f.allocate(kBlock, f.s) == i * kBlock);
  f.driver.work(f.s);
  for (std::int64_t i = 0; i < kBlocks; ++i) REQUIRE(f.free(i * kBlock, f.s) == CUDA_SUCCESS);
  for (std::int64_t i = 0; i < kBlocks; ++i) REQUIRE(f.allocate(kBlock, f.t) == i * kBlock);
}

TEST_CASE("a plan with waits serves bytes that were never freed beside those that its first stream has freed",
          "[serve][heap]") {
  plan::DevicePlan plan = plan_of_handles({1});
  for (std::uint64_t i = 0; i < 4; ++i) add_slot(&plan, plan::kUnitBytes, i % 3 * plan::kUnitBytes);
  plan.slots[0].event_on_free = true;
  plan.waits = {{3, 0}};
  Fixture f(plan);
  REQUIRE(f.allocate(plan::kUnitBytes, f.s) == 0);
  REQUIRE(f.allocate(plan::kUnitBytes, f.s) == plan::kUnitBytes);
  f.driver.work(f.s);
  REQUIRE(f.free(plan::kUnitBytes, f.s) == CUDA_SUCCESS);
  REQUIRE(f.allocate(plan::kUnitBytes, f.t) == 2 * plan::kUnitBytes);
  REQUIRE(f.heap->statistics().waits == 0);
}

TEST_CASE("when the driver refuses the order, the slot is refused", "[serve][heap]") {
  const auto call = static_cast<std::uint64_t>(GENERATE(range(1, 12)));
  CAPTURE(call);
  Fixture f(overlapping_plan());
  REQUIRE(f.allocate(4 * kKiB, f.s) == 0);
  const Moment use = f.driver.work(f.s);
  REQUIRE(f.free(0, f.s) == CUDA_SUCCESS);
  f.driver.fail_at(call, CUDA_ERROR_UNKNOWN);
  const std::int64_t offset = f.allocate(8 * kKiB, f.t);
  f.driver.fail_at(0);
  if (offset == 0) REQUIRE(f.driver.is_ordered(f.t, use));
  if (offset == -1) {  // the bytes are still free
    f.allocate(1000, f.s);
    REQUIRE(f.allocate(4 * kKiB, f.s) == 0);
  }
}

TEST_CASE("a synchronous free makes the bytes usable on every stream", "[serve][heap]") {
  Fixture f(overlapping_plan());
  REQUIRE(f.heap->allocate_sync(4 * kKiB) == f.base());
  const Moment use = f.driver.work(f.s);
  REQUIRE(f.heap->free_sync(f.base()) == CUDA_SUCCESS);
  REQUIRE(f.allocate(8 * kKiB, f.t) == 0);
  REQUIRE(f.driver.is_ordered(f.t, use));
  REQUIRE(f.heap->statistics().waits == 0);
}

TEST_CASE("a synchronous free under another context waits for the heap's", "[serve][heap]") {
  Fixture f(overlapping_plan());
  REQUIRE(f.heap->allocate_sync(4 * kKiB) == f.base());
  const Moment use = f.driver.work(f.s);
  f.driver.push_context(FakeDriver::other_context());
  REQUIRE(f.heap->free_sync(f.base()) == CUDA_SUCCESS);
  f.driver.pop_context();
  REQUIRE(f.driver.is_ordered(f.t, use));
}

TEST_CASE("a synchronous free of a range from a pool does not wait", "[serve][heap]") {
  Fixture f(overlapping_plan());
  REQUIRE(f.allocate(4 * kKiB, f.s) == 0);
  bool waited = false;
  f.driver.while_synchronizing = [&] { waited = true; };
  REQUIRE(f.heap->free_sync(f.base()) == CUDA_SUCCESS);
  REQUIRE_FALSE(waited);
  f.driver.while_synchronizing = nullptr;
  REQUIRE(f.allocate(8 * kKiB, f.s) == 0);
}

TEST_CASE("a synchronous free of a range from a pool does not complete earlier work on its bytes", "[serve][heap]") {
  plan::DevicePlan plan = overlapping_plan();
  plan.slots[0].event_on_free = false;
  Fixture f(plan);
  REQUIRE(f.allocate(4 * kKiB, f.s) == 0);
  f.driver.work(f.s);
  REQUIRE(f.free(0, f.s) == CUDA_SUCCESS);
  REQUIRE(f.allocate(8 * kKiB, f.s) == 0);               // which no work uses,
  REQUIRE(f.heap->free_sync(f.base()) == CUDA_SUCCESS);  // so this is allowed
  REQUIRE(f.allocate(1000, f.s) == 64 * kKiB);
  REQUIRE(f.allocate(4 * kKiB, f.t) == -1);
  synchronize(*f.heap, f.driver);
  REQUIRE(f.allocate(8 * kKiB, f.t) == 0);
}

TEST_CASE("a stream waits for frees before a range from a pool that was freed synchronously", "[serve][heap]") {
  Fixture f(overlapping_plan());
  const StreamKey third{f.driver.new_stream(), 0};
  REQUIRE(f.allocate(4 * kKiB, f.s) == 0);
  const Moment use = f.driver.work(f.s);
  REQUIRE(f.free(0, f.s) == CUDA_SUCCESS);
  REQUIRE(f.allocate(8 * kKiB, f.t) == 0);
  REQUIRE(f.heap->free_sync(f.base()) == CUDA_SUCCESS);
  REQUIRE(f.allocate(1000, f.s) == 64 * kKiB);
  REQUIRE_FALSE(f.driver.is_ordered(third, use));
  REQUIRE(f.allocate(4 * kKiB, third) == 0);
  REQUIRE(f.driver.is_ordered(third, use));
}

TEST_CASE("a thread's own stream keeps its ordinal while it waits for a free", "[serve][heap]") {
  HeapFixture f;
  std::vector<StreamKey> streams{f.stream, f.other};
  const auto add_busy_streams = [&](std::size_t count) {
    while (streams.size() < count) streams.push_back({f.driver.new_stream(), 0});
    for (const StreamKey& stream : streams) {
      f.allocate(1000, stream);
      f.driver.work(stream);
    }
  };
  add_busy_streams(serve::StreamClock::kStreams);
  const CUdeviceptr block = f.allocate(4 * kPage, f.other);
  const Moment use = f.driver.work(f.other);
  f.free(block, f.other);
  REQUIRE(f.allocate(4 * kPage, make_stream_key(nullptr, true)) == block);  // the stream waits for the free
  add_busy_streams(serve::kMaxStreams - 1);
  const StreamKey newcomer{f.driver.new_stream(), 0};
  f.heap->allocate(1000, newcomer, nullptr);
  REQUIRE(f.heap->free_sync(block) == CUDA_SUCCESS);
  const auto address = f.heap->allocate(4 * kPage, newcomer, nullptr);
  REQUIRE((address != block || f.driver.is_ordered(newcomer, use)));
}

TEST_CASE("a synchronous free leaves captures alone", "[serve][heap]") {
  Fixture f(overlapping_plan());
  REQUIRE(f.heap->allocate_sync(4 * kKiB) == f.base());
  f.driver.set_capturing(f.s.handle, true);  // synchronizing the context is now a misuse of the fake driver
  REQUIRE(f.heap->free_sync(f.base()) == CUDA_SUCCESS);
  REQUIRE(f.allocate(8 * kKiB, f.t) == 0);
  f.driver.set_capturing(f.s.handle, false);
}

TEST_CASE("a synchronous free that CUDA refuses during a capture changes nothing", "[serve][heap]") {
  Fixture f(overlapping_plan());
  REQUIRE(f.heap->allocate_sync(4 * kKiB) == f.base());
  f.driver.captures_globally = true;
  REQUIRE(f.heap->free_sync(f.base()) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  f.driver.captures_globally = false;
  REQUIRE(f.allocate(8 * kKiB, f.t) == -1);
  REQUIRE(f.heap->free_sync(f.base()) == CUDA_SUCCESS);
  REQUIRE(f.allocate(1000, f.t) == 64 * kKiB);
  REQUIRE(f.allocate(4 * kKiB, f.t) == 0);
}

TEST_CASE("work that is given while a free waits does not count as complete", "[serve][heap]") {
  Fixture f(overlapping_plan());
  REQUIRE(f.allocate(4 * kKiB, f.s) == 0);
  REQUIRE(f.allocate(8 * kKiB, f.s) == -1);
  REQUIRE(f.heap->allocate_sync(1000) == f.base() + 64 * kKiB);
  Moment use;
  f.driver.while_synchronizing = [&] {
    f.driver.while_synchronizing = nullptr;
    use = f.driver.work(f.s);
    REQUIRE(f.free(0, f.s) == CUDA_SUCCESS);
  };
  REQUIRE(f.heap->free_sync(f.base() + 64 * kKiB) == CUDA_SUCCESS);
  REQUIRE(f.allocate(4 * kKiB, f.t) == 0);
  REQUIRE(f.driver.is_ordered(f.t, use));
}

TEST_CASE("a synchronous free that fails in the driver keeps the range and returns the error", "[serve][heap]") {
  Fixture f(overlapping_plan());
  REQUIRE(f.heap->allocate_sync(4 * kKiB) == f.base());
  const auto call = static_cast<std::uint64_t>(GENERATE(1, 2, 3));  // the calls: current context, allocate, free
  f.driver.fail_at(call, CUDA_ERROR_ILLEGAL_ADDRESS);
  REQUIRE(f.heap->free_sync(f.base()) != CUDA_SUCCESS);
  f.driver.fail_at(0);
  REQUIRE(f.allocate(8 * kKiB, f.s) == -1);
  REQUIRE(f.heap->free_sync(f.base()) == CUDA_SUCCESS);
}

TEST_CASE("a synchronous free on a full device uses the spare block", "[serve][heap]") {
  Fixture f(overlapping_plan());
  REQUIRE(f.heap->allocate_sync(4 * kKiB) == f.base());
  f.driver.fail_at(2);  // allocate
  REQUIRE(f.heap->free_sync(f.base()) == CUDA_SUCCESS);
}

TEST_CASE("a request for more than the device has is refused before it is rounded", "[serve][heap]") {
  FakeDriver driver(kPage, 64 * kPage);
  std::string why;
  const auto heap = Heap::create(driver, 0, nullptr, FakeDriver::context(), {}, &why, count_log);
  REQUIRE(heap);
  const StreamKey s{driver.new_stream(), 0};
  REQUIRE(heap->allocate(kPage, s, nullptr));
  logs = 0;
  const std::uint64_t calls = driver.calls();
  const std::uint64_t bytes =
      GENERATE(~std::uint64_t{0}, ~std::uint64_t{0} - 4095, ~std::uint64_t{0} - (1 << 20), 64 * kPage + 1);
  REQUIRE_FALSE(heap->allocate(bytes, s, nullptr));
  REQUIRE_FALSE(heap->allocate_sync(bytes));
  REQUIRE(heap->make_room(bytes, true) == 0);
  REQUIRE(logs == 0);
  REQUIRE(driver.calls() <= calls + 4);  // at most the free memory is queried
}

TEST_CASE("bytes for every stream are served only if no work is pending", "[serve][heap]") {
  Fixture f(overlapping_plan());
  f.allocate(4 * kKiB, f.s);
  f.driver.work(f.s);
  f.free(0, f.s);
  REQUIRE_FALSE(f.heap->allocate_sync(8 * kKiB));
  f.allocate(1000, f.s);
  f.driver.finish_all_work();
  REQUIRE(f.heap->allocate_sync(4 * kKiB) == f.base());
  REQUIRE(f.heap->free_sync(f.base()) == CUDA_SUCCESS);
  REQUIRE(f.heap->allocate_sync(8 * kKiB) == f.base());
}

TEST_CASE("under capture, nothing is served, freed or counted as a deviation", "[serve][heap]") {
  Fixture f(overlapping_plan());
  REQUIRE(f.allocate(4 * kKiB, f.s) == 0);
  f.driver.set_capturing(f.t.handle, true);
  REQUIRE(f.allocate(8 * kKiB, f.t) == -1);
  REQUIRE(f.allocate(8 * kKiB, make_stream_key(nullptr, false)) == -1);  // the capture blocks the legacy stream
  REQUIRE(f.free(0, f.t) == CUDA_ERROR_INVALID_VALUE);
  f.driver.set_capturing(f.t.handle, false);
  REQUIRE(f.free(0, f.s) == CUDA_SUCCESS);
  REQUIRE(f.allocate(8 * kKiB, f.t) == 0);
  REQUIRE(f.heap->statistics().refused_slots == 0);
}

TEST_CASE("bytes freed on a stream of another context are free when its work is complete", "[serve][heap]") {
  Fixture f(overlapping_plan());
  const StreamKey foreign{f.driver.new_stream(FakeDriver::other_context()), 0};
  REQUIRE(f.allocate(4 * kKiB, foreign) == -1);
  REQUIRE(f.allocate(8 * kKiB, f.s) == 0);
  const Moment use = f.driver.work(foreign);
  REQUIRE(f.free(0, foreign) == CUDA_SUCCESS);
  REQUIRE_FALSE(f.driver.is_over(use));  // nothing has waited
  REQUIRE(f.free(0, foreign) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(f.allocate(1000, f.s) == 64 * kKiB);
  REQUIRE(f.allocate(4 * kKiB, f.s) == -1);
  f.driver.finish_all_work();
  REQUIRE(f.allocate(8 * kKiB, f.s) == 0);
}

TEST_CASE("bytes freed on a stream of a context are free when that ends, and its events are not used",
          "[serve][heap]") {
  Fixture f(overlapping_plan());
  const StreamKey foreign{f.driver.new_stream(FakeDriver::other_context()), 0};
  REQUIRE(f.allocate(4 * kKiB, foreign) == -1);
  REQUIRE(f.allocate(8 * kKiB, f.s) == 0);
  f.driver.work(foreign);
  REQUIRE(f.free(0, foreign) == CUDA_SUCCESS);
  const bool ends = GENERATE(true, false);
  f.heap->before_context_end(FakeDriver::other_context());
  if (ends) f.driver.end_events_of(FakeDriver::other_context());
  REQUIRE(f.allocate(1000, f.s) == 64 * kKiB);
  REQUIRE(f.allocate(4 * kKiB, f.s) == -1);
  f.heap->after_context_end(FakeDriver::other_context(), ends);
  if (!ends) f.driver.finish_all_work();  // the context did not end, so the event must complete
  REQUIRE(f.allocate(8 * kKiB, f.s) == 0);
}

TEST_CASE("bytes freed on a green context's stream are free when its work is complete, also after the context's end",
          "[serve][heap]") {
  Fixture f(overlapping_plan());
  const StreamKey green{f.driver.new_stream(FakeDriver::green_context()), 0};
  REQUIRE(f.allocate(4 * kKiB, green) == -1);
  REQUIRE(f.allocate(8 * kKiB, f.s) == 0);
  f.driver.work(green);
  REQUIRE(f.free(0, green) == CUDA_SUCCESS);
  f.driver.end_events_of(FakeDriver::green_context());
  REQUIRE(f.allocate(1000, f.s) == 64 * kKiB);
  REQUIRE(f.allocate(4 * kKiB, f.s) == -1);  // the work is still pending
  f.driver.finish_all_work();
  REQUIRE(f.allocate(8 * kKiB, f.s) == 0);
}

TEST_CASE("events that cannot be queried do not delay other frees", "[serve][heap]") {
  constexpr std::int64_t kBytes = 4 * kKiB;
  constexpr std::int64_t kLost = 6;
  Fixture f(plan_of_sizes({kBytes, kBytes, kBytes, kBytes, kBytes, kBytes, 2 * kBytes}));
  const StreamKey foreign{f.driver.new_stream(FakeDriver::other_context()), 0};
  for (std::int64_t i = 0; i < kLost; ++i) REQUIRE(f.allocate(kBytes, f.s) == i * kBytes);
  REQUIRE(f.allocate(2 * kBytes, f.s) == kLost * kBytes);
  for (std::int64_t i = 0; i < kLost; ++i) REQUIRE(f.free(i * kBytes, foreign) == CUDA_SUCCESS);
  f.driver.lose_events_of(FakeDriver::other_context());
  REQUIRE(f.free(kLost * kBytes, foreign) == CUDA_SUCCESS);
  f.driver.finish_all_work();
  for (std::int64_t i = 0; i < kLost; ++i) REQUIRE(f.allocate(kBytes, f.s) == -1);  // their events cannot be queried
  REQUIRE(f.allocate(2 * kBytes, f.s) == kLost * kBytes);
}

TEST_CASE("a stream destroyed with work pending leaves its bytes ordered", "[serve][heap]") {
  Fixture f(overlapping_plan());
  f.allocate(4 * kKiB, f.s);
  const Moment use = f.driver.work(f.s);
  f.free(0, f.s);
  f.heap->stream_destroyed(f.s.handle);
  f.driver.destroy_stream(f.s.handle);
  const StreamKey reused{f.driver.new_stream(), 0};
  REQUIRE(reused == f.s);
  REQUIRE(f.allocate(8 * kKiB, reused) == 0);
  REQUIRE(f.driver.is_ordered(reused, use));
}

TEST_CASE("the figures of a pool count the requests that name it", "[serve][heap]") {
  Fixture f(plan_of_sizes({1000, 2000, 3000}));
  REQUIRE_FALSE(f.heap->pool_use(nullptr).known);
  const auto one = f.heap->allocate(1000, f.s, nullptr);
  const auto two = f.heap->allocate(2000, f.s, pool_named(0x10));
  REQUIRE(f.heap->allocate_sync(3000));
  REQUIRE((one && two));
  f.heap->note_unplanned(0x7000, 500, nullptr);
  f.heap->note_unplanned_sync(0x8000, 700);
  serve::PoolUse own = f.heap->pool_use(nullptr);
  REQUIRE(own.known);
  REQUIRE(own.used == 1500);
  REQUIRE(own.reserved == kPage - 2000 - 3000);  // everything except the live bytes of other pools
  REQUIRE(f.heap->pool_use(pool_named(0x10)).used == 2000);
  REQUIRE(f.heap->pool_use(pool_named(0x10)).reserved == 2000);
  f.heap->note_original_freed(0x7000, f.heap->find_unplanned(0x7000));
  f.heap->free_async(*one, f.s);
  own = f.heap->pool_use(nullptr);
  REQUIRE(own.used == 0);
  REQUIRE(own.used_high == 1500);
  f.heap->reset_pool_high(nullptr, true, false);
  REQUIRE(f.heap->pool_use(nullptr).used_high == 0);
  REQUIRE(f.heap->pool_use(pool_named(0x10)).used_high == 2000);
  f.heap->free_async(*two, f.s);
  own = f.heap->pool_use(nullptr);
  REQUIRE(own.reserved == kPage - 3000);
  REQUIRE(own.reserved_high == kPage - 3000);
  serve::PoolUse other = f.heap->pool_use(pool_named(0x10));
  REQUIRE(other.reserved == 0);
  REQUIRE(other.reserved_high == 2000);
  f.heap->reset_pool_high(pool_named(0x10), false, true);
  REQUIRE(f.heap->pool_use(pool_named(0x10)).reserved_high == 0);

  const serve::Statistics figures = f.heap->statistics();
  REQUIRE(figures.unplanned_live == 700);
  REQUIRE(figures.planned_live == 3000);
  REQUIRE(figures.live_peak == 7200);
  REQUIRE(figures.served_live_peak == 6000);
  REQUIRE(figures.unplanned_requests == 2);
  REQUIRE(figures.unplanned_large_requests == 0);
}

TEST_CASE("an address that is reported twice counts once, and an unknown one does not count", "[serve][heap]") {
  Fixture f(overlapping_plan());
  f.heap->note_unplanned(0x7000, 500, nullptr);
  f.heap->note_unplanned(0x7000, 2 << 20, nullptr);
  REQUIRE(f.heap->statistics().unplanned_live == 2 << 20);
  REQUIRE(f.heap->statistics().unplanned_large_requests == 1);
  f.heap->note_original_freed(0x9000, f.heap->find_unplanned(0x9000));
  f.heap->note_original_freed(0x7000, f.heap->find_unplanned(0x7000));
  f.heap->note_original_freed(0x7000, f.heap->find_unplanned(0x7000));
  REQUIRE(f.heap->statistics().unplanned_live == 0);
}

TEST_CASE("the free of an address that is in use again does not change the new range", "[serve][heap]") {
  Fixture f(overlapping_plan());
  f.heap->note_unplanned(0x7000, 500, nullptr);
  const std::uint64_t number = f.heap->find_unplanned(0x7000);
  f.heap->note_unplanned(0x7000, 700, nullptr);
  f.heap->note_original_freed(0x7000, number);
  REQUIRE(f.heap->statistics().unplanned_live == 700);
}

TEST_CASE("a plan of another program is dropped once, and live ranges are kept", "[serve][heap]") {
  plan::DevicePlan plan = plan_of_handles({1, 1});
  add_slot(&plan, 1000, 0);
  add_slot(&plan, 3000, kPage);
  Fixture f(plan);
  REQUIRE(f.allocate(1000, f.s) == 0);
  REQUIRE(f.heap->trim() == 0);
  for (int i = 0; i < 2000; ++i) REQUIRE(f.allocate(5000, f.s) == -1);
  REQUIRE(logs == 1);
  REQUIRE(last_log ==
          "the plan does not fit this program and is no longer used (was it made from another run?); the first "
          "difference: request 2 is of 5000 bytes, where the plan has 3072");
  REQUIRE(f.allocate(3000, f.s) == -1);
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  REQUIRE(find_range(*f.heap, f.base(), &base, &bytes));
  REQUIRE(f.heap->trim() == kPage);
  REQUIRE(f.heap->statistics().physical == kPage);
  REQUIRE_NOTHROW(f.driver.physical(f.base()));
  f.driver.work(f.s);
  REQUIRE(f.free(0, f.s) == CUDA_SUCCESS);
  REQUIRE(f.heap->trim() == 0);  // memory in use is not unmapped, and nothing waits
  synchronize(*f.heap, f.driver);
  REQUIRE(f.heap->trim() == kPage);
  REQUIRE(f.heap->statistics().physical == 0);
  REQUIRE(f.heap->statistics().mapping_calls_after_start == 2);
}

TEST_CASE("after a strict plan is dropped, requests fail, and live ranges can be freed", "[serve][heap]") {
  const bool strict = GENERATE(false, true);
  plan::DevicePlan plan = plan_of_handles({1});
  add_slot(&plan, 1000, 0);
  plan.body = 1;
  FakeDriver driver(kPage, std::uint64_t{1} << 30);
  serve::HeapOptions options = small_options();
  options.plan_is_strict = strict;
  std::string why;
  const auto heap = Heap::create(driver, 0, &plan, FakeDriver::context(), options, &why, count_log);
  REQUIRE(heap);
  logs = 0;
  const StreamKey stream{driver.new_stream(), 0};
  const auto planned = heap->allocate(1000, stream, nullptr);
  REQUIRE(planned);
  REQUIRE_FALSE(heap->refuses());
  for (int i = 0; i < 2000; ++i) (void)heap->allocate(5000, stream, nullptr);
  REQUIRE(heap->refuses() == strict);
  REQUIRE(logs == 1);
  REQUIRE(last_log.ends_with("; STALLOC_PLAN_STRICT=on makes all requests for device memory fail") == strict);
  REQUIRE(heap->allocate(5000, stream, nullptr).has_value() == !strict);
  REQUIRE(heap->allocate_sync(5000).has_value() == !strict);
  REQUIRE(heap->free_async(*planned, stream) == CUDA_SUCCESS);
}

TEST_CASE("with a plan that places nothing, everything is served dynamically", "[serve][heap]") {
  const plan::DevicePlan plan;
  FakeDriver driver{kPage};
  std::string why;
  const auto heap = Heap::create(driver, 0, &plan, FakeDriver::context(), {}, &why, count_log);
  REQUIRE(heap);
  logs = 0;
  REQUIRE(heap->allocate(kPage, StreamKey{driver.new_stream(), 0}, nullptr));
  REQUIRE(heap->statistics().dynamic_requests == 1);
  REQUIRE(logs == 0);
}

TEST_CASE("a heap that cannot be created waits for nothing", "[serve][heap]") {
  const plan::DevicePlan plan = overlapping_plan();
  const bool with_plan = GENERATE(false, true);
  int failed = 0;
  for (std::uint64_t call = 1;; ++call) {
    FakeDriver driver;
    int waits = 0;
    driver.while_synchronizing = [&] { ++waits; };
    driver.fail_at(call, CUDA_ERROR_OUT_OF_MEMORY);
    std::string why;
    auto heap = Heap::create(driver, 0, with_plan ? &plan : nullptr, FakeDriver::context(), {}, &why);
    const bool all_succeeded = driver.calls() < call;
    driver.fail_at(0);
    REQUIRE(waits == 0);
    if (all_succeeded) break;
    if (heap == nullptr) {
      ++failed;
      REQUIRE(driver.holds_nothing());
    }
  }
  REQUIRE(failed >= 2);
}

TEST_CASE("a heap releases everything, events included", "[serve][heap]") {
  FakeDriver driver(kPage);
  std::string why;
  {
    const auto heap = plan_only_heap(driver, overlapping_plan(), &why);
    REQUIRE(heap);
    const StreamKey s{driver.new_stream(), 0};
    const StreamKey t{driver.new_stream(), 0};
    const auto address = heap->allocate(4 * kKiB, s, nullptr);
    heap->free_async(*address, s);
    REQUIRE(heap->allocate(8 * kKiB, t, nullptr));
  }
  REQUIRE(driver.is_clean());
}

TEST_CASE("peers with access can use served memory", "[serve][heap]") {
  Fixture f(overlapping_plan());
  REQUIRE(f.heap->grant_access(1) == CUDA_SUCCESS);
  REQUIRE_NOTHROW(f.driver.physical(f.base(), 1));
}

TEST_CASE("stream keys distinguish default streams", "[serve][heap]") {
  REQUIRE(make_stream_key(nullptr, false) == make_stream_key(CU_STREAM_LEGACY, true));
  REQUIRE(make_stream_key(nullptr, true) == make_stream_key(CU_STREAM_PER_THREAD, false));
  REQUIRE_FALSE(make_stream_key(nullptr, true) == make_stream_key(nullptr, false));
}

TEST_CASE("figures are returned without waiting, or not at all", "[serve][heap]") {
  FakeDriver driver{kPage};
  std::string why;
  const auto heap = Heap::create(driver, 0, nullptr, FakeDriver::context(), small_options(), &why);
  REQUIRE(heap);
  const StreamKey s{driver.new_stream(), 0};
  const auto address = heap->allocate(4 * kPage, s, nullptr);
  REQUIRE(address);
  serve::Statistics figures;
  REQUIRE(heap->try_statistics(&figures));
  CHECK(figures.dynamic_requests == 1);
  REQUIRE(heap->free_async(*address, s) == CUDA_SUCCESS);
  synchronize(*heap, driver);
  bool tried = false;
  driver.before_unmap = [&](CUdeviceptr, std::size_t) {  // called with the heap's lock held
    CHECK_FALSE(heap->try_statistics(&figures));
    tried = true;
  };
  heap->trim(0);
  driver.before_unmap = nullptr;
  CHECK(tried);
  CHECK(heap->try_statistics(&figures));
}
