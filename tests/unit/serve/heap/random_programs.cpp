// SPDX-License-Identifier: Apache-2.0
// Random programs with random plans. Whatever the program and the driver do, no byte is served twice, and none before
// its latest use is complete.
#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "catch.h"
#include "fake_driver.h"
#include "heaps.h"
#include "interpose/serve/heap/heap.h"
#include "plans.h"
#include "programs.h"
#include "shadow.h"
#include "tests/unit/seeds.h"

using namespace stalloc;
using namespace stalloc::test;
using stalloc::make_stream_key;

namespace {

// Random requests, a plan for them, and a heap that serves from the plan only.
struct Setting {
  Random random;
  std::vector<ProgramRequest> requests;
  plan::DevicePlan plan;
  FakeDriver driver{kPage};
  std::unique_ptr<Heap> heap;
  Shadow shadow{&driver};

  Setting(std::uint64_t seed, std::size_t count)
      : random(seed), requests(random_requests(count, random)), plan(plan_for(requests, random)) {
    std::string why;
    heap = plan_only_heap(driver, plan, &why);
    REQUIRE(heap);
  }
};

}  // namespace

TEST_CASE("random programs on several streams", "[serve][random]") {
  const std::uint64_t seed = GENERATE(from_range(seeds(30)));
  CAPTURE(seed);
  Setting set(seed, 200);
  std::vector<StreamKey> streams = new_streams(set.driver, 4);
  streams.push_back(make_stream_key(nullptr, false));
  streams.push_back(make_stream_key(nullptr, true));
  Program program(&set.driver, set.heap.get(), &set.shadow, streams, seed);
  REQUIRE_NOTHROW(run(program, set.requests, set.plan, 8, [&] {
    if (set.random() % 50 == 0) set.driver.finish_all_work();
  }));
  program.finish();
  REQUIRE(set.heap->statistics().planned_live == 0);
  REQUIRE(set.heap->statistics().waits > 0);
  REQUIRE(program.served() > 150);  // of about 1000 requests: most of them match the plan
}

TEST_CASE("random programs whose first requests are out of order", "[serve][random]") {
  std::uint64_t spare_slots = 0;
  for (const std::uint64_t seed : seeds(20)) {
    CAPTURE(seed);
    Setting set(seed, 200);
    std::shuffle(set.requests.begin(), set.requests.begin() + set.plan.prologue, set.random);
    Program program(&set.driver, set.heap.get(), &set.shadow, new_streams(set.driver, 3), seed);
    REQUIRE_NOTHROW(run(program, set.requests, set.plan, 3, [&] {
      if (set.random() % 50 == 0) set.driver.finish_all_work();
    }));
    program.finish();
    REQUIRE(set.heap->statistics().planned_live == 0);
    spare_slots += set.heap->statistics().spare_slots;
  }
  REQUIRE(spare_slots > 5);
}

TEST_CASE("random programs while driver calls fail", "[serve][random]") {
  const std::uint64_t seed = GENERATE(from_range(seeds(30)));
  CAPTURE(seed);
  Setting set(seed, 100);
  Program program(&set.driver, set.heap.get(), &set.shadow, new_streams(set.driver, 3), seed);
  REQUIRE_NOTHROW(
      run(program, set.requests, set.plan, 5, [&] { set.driver.fail_at(set.random() % 12 + 1, CUDA_ERROR_UNKNOWN); }));
  REQUIRE(program.served() > 0);
}

TEST_CASE("random programs with captures in between", "[serve][random]") {
  const std::uint64_t seed = GENERATE(from_range(seeds(15)));
  CAPTURE(seed);
  Setting set(seed, 100);
  Program program(&set.driver, set.heap.get(), &set.shadow, new_streams(set.driver, 3), seed);
  const CUstream captured = set.driver.new_stream();
  bool capturing = false;
  REQUIRE_NOTHROW(run(program, set.requests, set.plan, 5, [&] {
    if (set.random() % 10 == 0) set.driver.set_capturing(captured, capturing = !capturing);
    if (!capturing) return;
    if (set.heap->allocate(set.random() % kPage + 1, {captured, 0}, nullptr)) FAIL("served under capture");
  }));
  set.driver.set_capturing(captured, false);
  REQUIRE(program.served() > 0);
}

TEST_CASE("creating a heap fails cleanly at every call", "[serve][random]") {
  Random random(5);
  const plan::DevicePlan plan = plan_for(random_requests(60, random), random);
  std::string why;
  std::uint64_t calls = 0;
  std::size_t events = 0;
  {
    FakeDriver driver(kPage);
    const auto heap = plan_only_heap(driver, plan, &why);
    REQUIRE(heap);
    calls = driver.calls();
    events = driver.events();
  }
  REQUIRE(calls > plan.handles.size() + plan.views.size() + events);
  for (std::uint64_t call = 1; call <= calls; ++call) {
    FakeDriver driver(kPage);
    driver.fail_at(call);
    auto heap = plan_only_heap(driver, plan, &why);
    if (heap) REQUIRE(driver.events() < events);  // the heap can do with fewer
    heap.reset();
    REQUIRE(driver.is_clean());
  }
}

TEST_CASE("random programs on several threads", "[serve][random][threads]") {
  const std::uint64_t seed = GENERATE(from_range(seeds(5)));
  CAPTURE(seed);
  Setting set(seed, 120);
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
        program = &programs.emplace_back(&set.driver, set.heap.get(), &set.shadow, streams, seed * 10 + number);
      }
      try {
        run(*program, set.requests, set.plan, 4, [] {});
        program->finish();
      } catch (const Shadow::Broken& error) {
        const std::lock_guard<std::mutex> lock(mutex);
        broken.emplace_back(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  REQUIRE(broken.empty());
  REQUIRE(set.heap->statistics().planned_live == 0);
  std::size_t served = 0;
  for (const Program& program : programs) served += program.served();
  // The number depends on the order of the threads: the plan is dropped if too few requests match it.
  REQUIRE(served > 0);
}

TEST_CASE("random programs on several threads, each with a lane of its own", "[serve][random][threads]") {
  const std::uint64_t seed = GENERATE(from_range(seeds(5)));
  CAPTURE(seed);
  Random random(seed);
  const std::vector<ProgramRequest> requests = random_requests(240, random);
  plan::DevicePlan plan = plan_for(requests, random);
  constexpr std::uint8_t kLanes = 3;
  for (std::size_t slot = 0; slot < plan.slots.size(); ++slot) {
    plan.lanes.push_back(static_cast<std::uint8_t>(random() % kLanes));
  }
  FakeDriver driver(kPage);
  std::string why;
  const auto heap = plan_only_heap(driver, plan, &why);
  REQUIRE(heap);
  Shadow shadow(&driver);
  std::deque<Program> programs;
  std::vector<std::string> broken(kLanes);
  std::vector<std::thread> threads;
  for (std::uint8_t lane = 0; lane < kLanes; ++lane) {
    programs.emplace_back(&driver, heap.get(), &shadow, new_streams(driver, 2), seed * 10 + lane);
  }
  for (std::uint8_t lane = 0; lane < kLanes; ++lane) {
    threads.emplace_back([&, lane] {
      const std::size_t body_end = plan.prologue + plan.body;
      try {
        for (int repetition = 0; repetition < 8; ++repetition) {
          for (std::size_t i = repetition == 0 ? 0 : plan.prologue; i < body_end; ++i) {
            if (plan.lanes[i] == lane) programs[lane].request(requests[i]);
          }
        }
        programs[lane].finish();
      } catch (const Shadow::Broken& error) {
        broken[lane] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(broken == std::vector<std::string>(kLanes));
  CHECK(heap->statistics().planned_live == 0);
  std::size_t served = 0;
  for (const Program& program : programs) served += program.served();
  // The number depends on the order of the threads: a slot is refused while another lane's block has its bytes.
  CHECK(served > 0);
}
