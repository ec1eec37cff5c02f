// SPDX-License-Identifier: Apache-2.0
// Random programs served dynamically, with and without a plan. Whatever the program and the driver do, no byte is
// served twice, none before its latest use is complete, and every request that fits the device is served.
#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "catch.h"
#include "fake_driver.h"
#include "heaps.h"
#include "host_memory.h"
#include "interpose/serve/heap/heap.h"
#include "plans.h"
#include "programs.h"
#include "shadow.h"
#include "tests/unit/seeds.h"

using namespace stalloc;
using namespace stalloc::test;
using serve::CrossStream;
using serve::HeapOptions;
using stalloc::make_stream_key;

namespace {

// Options with which dynamic requests use the plan's free bytes early.
HeapOptions sharing_options() {
  HeapOptions options = small_options();
  options.max_bytes_beside_plan = 2 * kPage;
  return options;
}

struct Setting {
  FakeDriver driver{kPage, std::uint64_t{1} << 30};
  plan::DevicePlan plan;
  std::unique_ptr<Heap> heap;
  std::vector<ProgramRequest> requests;
  Random random;

  Setting(std::uint64_t seed, bool with_plan, const HeapOptions& options, std::size_t count = 150) : random(seed) {
    requests = random_requests(count, random);
    plan = plan_for(requests, random);
    std::string why;
    heap = Heap::create(driver, 0, with_plan ? &plan : nullptr, FakeDriver::context(), options, &why);
    REQUIRE(heap);
  }
};

std::vector<StreamKey> all_kinds_of_streams(FakeDriver& driver) {
  std::vector<StreamKey> streams = new_streams(driver, 3);
  streams.push_back(make_stream_key(nullptr, false));
  streams.push_back(make_stream_key(nullptr, true));
  return streams;
}

}  // namespace

TEST_CASE("random programs served dynamically", "[serve][random][dynamic]") {
  const std::uint64_t seed = GENERATE(from_range(seeds(24)));
  const bool with_plan = GENERATE(false, true);
  CAPTURE(seed, with_plan);
  HeapOptions options = sharing_options();
  options.cross_stream = std::vector{CrossStream::OrderThenGrow, CrossStream::GrowThenOrder, CrossStream::Never,
                                     CrossStream::Share}[seed % 4];
  options.policy.stitch = seed % 5 != 0;
  options.policy.kept_views = seed % 7;
  Setting set(seed, with_plan, options);
  Shadow shadow(&set.driver);
  Program program(&set.driver, set.heap.get(), &shadow, all_kinds_of_streams(set.driver), seed);
  program.drop_some();
  REQUIRE_NOTHROW(run(program, set.requests, set.plan, 8, [&] {
    if (set.random() % 50 == 0) set.driver.finish_all_work();
    if (set.random() % 100 == 0) set.heap->trim(set.random() % 4 * kPage);
  }));
  REQUIRE(program.refused() == 0);
  program.finish();
  const serve::Statistics statistics = set.heap->statistics();
  REQUIRE(statistics.planned_live == 0);
  REQUIRE(statistics.dynamic_live == 0);
  REQUIRE(statistics.dynamic_requests > 0);
  synchronize(*set.heap, set.driver);
  set.heap->trim(0);
  if (!with_plan) REQUIRE(set.heap->statistics().physical == 0);
  set.heap.reset();
  REQUIRE(set.driver.is_clean());
}

// Runs a random program whose calls run out of host memory once in `one_without_memory_of` (0: never), with
// `make_trouble(set)` before each request. In the end, without trouble, everything must have been given back.
template <class MakeTrouble>
void run_in_trouble(std::uint64_t one_without_memory_of, MakeTrouble make_trouble) {
  const std::uint64_t seed = GENERATE(from_range(seeds(24)));
  const bool with_plan = GENERATE(false, true);
  CAPTURE(seed, with_plan);
  Setting set(seed, with_plan, sharing_options(), 100);
  Shadow shadow(&set.driver);
  Program program(&set.driver, set.heap.get(), &shadow, new_streams(set.driver, 3), seed);
  program.drop_some();
  program.run_out_of_host_memory(one_without_memory_of);
  REQUIRE_NOTHROW(run(program, set.requests, set.plan, 5, [&] { make_trouble(set); }));
  REQUIRE(program.served() > 20);
  set.driver.fail_at(0);
  set.driver.refuses_to_unmap = false;
  program.run_out_of_host_memory(0);
  program.finish();
  set.heap.reset();
  REQUIRE(set.driver.holds_nothing());
}

TEST_CASE("random programs served dynamically while driver calls fail", "[serve][random][dynamic]") {
  run_in_trouble(0, [](Setting& set) {
    set.driver.fail_at(set.random() % 12 + 1, set.random() % 2 == 0 ? CUDA_ERROR_UNKNOWN : CUDA_ERROR_OUT_OF_MEMORY);
    if (set.random() % 50 == 0) set.heap->trim(0);
  });
}

TEST_CASE("random programs served dynamically while driver calls fail many times in a row",
          "[serve][random][dynamic]") {
  run_in_trouble(0, [](Setting& set) {
    if (set.random() % 3 != 0) return;
    set.driver.fail_at(set.random() % 12 + 1, CUDA_ERROR_UNKNOWN, set.random() % 8 + 1);
    set.driver.refuses_to_unmap = set.random() % 4 == 0;
    if (set.random() % 20 == 0) set.heap->trim(0);
  });
}

TEST_CASE("random programs served dynamically while the host runs out of memory", "[serve][random][dynamic]") {
  run_in_trouble(4, [](Setting& set) {
    if (set.random() % 20 != 0) return;
    allocations_left = set.random() % 12;
    set.heap->trim(set.random() % 8 * kPage);
    allocations_left = 0;
  });
}

TEST_CASE("random programs served dynamically with captures in between", "[serve][random][dynamic]") {
  const std::uint64_t seed = GENERATE(from_range(seeds(15)));
  const bool with_plan = GENERATE(false, true);
  CAPTURE(seed, with_plan);
  Setting set(seed, with_plan, sharing_options(), 100);
  Shadow shadow(&set.driver);
  Program program(&set.driver, set.heap.get(), &shadow, new_streams(set.driver, 3), seed);
  program.drop_some();
  const CUstream captured = set.driver.new_stream();
  bool capturing = false;
  REQUIRE_NOTHROW(run(program, set.requests, set.plan, 5, [&] {
    if (set.random() % 10 == 0) set.driver.set_capturing(captured, capturing = !capturing);
    if (!capturing) return;
    if (set.heap->allocate(set.random() % kPage + 1, {captured, 0}, nullptr)) FAIL("served under capture");
  }));
  set.driver.set_capturing(captured, false);
  REQUIRE(program.served() > 20);
}

TEST_CASE("random programs in scarce memory", "[serve][random][dynamic]") {
  const std::uint64_t seed = GENERATE(from_range(seeds(24)));
  const bool with_plan = GENERATE(false, true);
  CAPTURE(seed, with_plan);
  Random random(seed);
  const std::vector<ProgramRequest> requests = random_requests(100, random);
  const plan::DevicePlan plan = plan_for(requests, random);
  FakeDriver driver(kPage, plan.physical_bytes + 8 * kPage);
  std::string why;
  const auto heap =
      Heap::create(driver, 0, with_plan ? &plan : nullptr, FakeDriver::context(), sharing_options(), &why);
  REQUIRE(heap);
  Shadow shadow(&driver);
  Program program(&driver, heap.get(), &shadow, new_streams(driver, 3), seed);
  program.drop_some();
  const std::uint64_t between = seed % 2 == 0 ? 40 : 400;  // calls that CUDA itself serves, which may end the plan
  REQUIRE_NOTHROW(run(program, requests, plan, 6, [&] {
    if (random() % between == 0) heap->make_room(random() % 8 * kPage, true);
  }));
  REQUIRE(heap->statistics().physical <= plan.physical_bytes + 8 * kPage);
  REQUIRE(heap->statistics().misses == program.refused());
}

TEST_CASE("random programs whose plan is given up while the driver refuses to unmap", "[serve][random][dynamic]") {
  const std::uint64_t seed = GENERATE(from_range(seeds(24)));
  CAPTURE(seed);
  Random random(seed);
  const std::vector<ProgramRequest> requests = random_requests(100, random);
  const plan::DevicePlan plan = plan_for(requests, random);
  FakeDriver driver(kPage, plan.physical_bytes + 8 * kPage);
  std::string why;
  auto heap = Heap::create(driver, 0, &plan, FakeDriver::context(), sharing_options(), &why);
  REQUIRE(heap);
  Shadow shadow(&driver);
  Program program(&driver, heap.get(), &shadow, new_streams(driver, 3), seed);
  program.drop_some();
  REQUIRE_NOTHROW(run(program, requests, plan, 6, [&] {
    if (random() % 40 != 0) return;
    driver.finish_all_work();
    driver.fail_at(random() % 8 + 1, CUDA_ERROR_UNKNOWN, random() % 3 + 1);
    heap->make_room(random() % 8 * kPage, true);
    driver.fail_at(0);
  }));
  REQUIRE(program.served() > 20);
  program.finish();
  heap.reset();
  REQUIRE(driver.holds_nothing());
}

TEST_CASE("random programs served dynamically on several threads", "[serve][random][dynamic][threads]") {
  const std::uint64_t seed = GENERATE(from_range(seeds(5)));
  const bool with_plan = GENERATE(false, true);
  CAPTURE(seed, with_plan);
  Setting set(seed, with_plan, sharing_options(), 120);
  Shadow shadow(&set.driver);
  std::deque<Program> programs;  // they outlive the threads, since the shadow refers to their moments
  std::mutex mutex;
  std::vector<std::string> broken;
  std::vector<std::thread> threads;
  for (std::uint64_t number = 0; number < 4; ++number) {
    threads.emplace_back([&, number] {
      std::vector<StreamKey> streams = new_streams(set.driver, 2);
      streams.push_back(make_stream_key(nullptr, true));
      Program* program = nullptr;
      {
        const std::lock_guard<std::mutex> lock(mutex);
        program = &programs.emplace_back(&set.driver, set.heap.get(), &shadow, streams, seed * 10 + number);
        program->drop_some();
      }
      try {
        int step = 0;
        run(*program, set.requests, set.plan, 4, [&] {
          if (number == 0 && ++step % 100 == 0) set.heap->trim(0);
        });
        program->finish();
      } catch (const Shadow::Broken& error) {
        const std::lock_guard<std::mutex> lock(mutex);
        broken.emplace_back(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  REQUIRE(broken.empty());
  REQUIRE(set.heap->statistics().dynamic_live == 0);
  for (const Program& program : programs) REQUIRE(program.refused() == 0);
}

TEST_CASE("random programs that destroy and create streams while calls fail and the host runs out of memory",
          "[serve][random][dynamic]") {
  const std::uint64_t seed = GENERATE(from_range(seeds(6)));
  const bool with_plan = GENERATE(false, true);
  CAPTURE(seed, with_plan);
  serve::EventOrder events;
  HeapOptions options = sharing_options();
  options.events = &events;
  Setting set(seed, with_plan, options, 100);
  Shadow shadow(&set.driver);
  std::vector<StreamKey> streams = new_streams(set.driver, 1 + seed % 3 * 20);  // more than have a clock, at last
  streams.push_back(make_stream_key(nullptr, false));
  streams.push_back(make_stream_key(nullptr, true));
  streams.push_back({set.driver.new_stream(FakeDriver::context(), CU_STREAM_DEFAULT), 0});
  Program program(&set.driver, set.heap.get(), &shadow, streams, seed);
  program.drop_some();
  program.run_out_of_host_memory(seed % 4 < 2 ? 0 : 10);
  std::size_t destroyed = 0;
  REQUIRE_NOTHROW(run(program, set.requests, set.plan, 10, [&] {
    if (seed % 2 == 0) set.driver.fail_at(set.random() % 12 + 1, CUDA_ERROR_UNKNOWN, set.random() % 8 + 1);
    if (set.random() % 10 == 0) set.driver.finish_work_of(program.any_stream());
    StreamKey& stream = program.any_stream();
    const auto is_of_stream = [&stream](const Live& live) { return live.stream == stream; };
    if (set.random() % 4 != 0 || stream.is_default() || std::ranges::any_of(program.live(), is_of_stream)) return;
    ++destroyed;
    set.heap->stream_destroyed(stream.handle);
    set.driver.destroy_stream(stream.handle);
    stream = {set.driver.new_stream(), 0};
  }));
  REQUIRE(destroyed > 0);
  REQUIRE(program.served() > 20);
  set.driver.fail_at(0);
  program.run_out_of_host_memory(0);
  program.finish();
  set.heap.reset();
  REQUIRE(set.driver.holds_nothing());
}
