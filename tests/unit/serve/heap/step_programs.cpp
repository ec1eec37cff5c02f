// SPDX-License-Identifier: Apache-2.0
// Random programs whose step is planned, and which then do everything else: other requests, on streams that they
// destroy and on streams of a green context, limits, release thresholds, captures, access for peers. No byte is served
// twice, none before its latest use is complete, and each block is backed by the handles that it is exported with.
#include <deque>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "catch.h"
#include "fake_driver.h"
#include "heaps.h"
#include "interpose/serve/heap/heap.h"
#include "programs.h"
#include "shadow.h"
#include "steps.h"

using namespace stalloc;
using namespace stalloc::test;

namespace {

constexpr int kMostSteps = 40;  // until the step is planned

struct Setting {
  FakeDriver driver;
  std::unique_ptr<Heap> heap;
  Random random;
  std::deque<Moments> moments;
  Shadow shadow{&driver};
  Program program;  // repeats a step
  Program guest;    // makes other requests
  std::vector<int> peers;
  CUstream captured = driver.new_stream();
  bool capturing = false;
  bool calls_fail = false;  // in `deviate`

  Setting(std::uint64_t seed, std::uint64_t pages)
      : driver(kSmallPage, pages * kSmallPage),
        heap(create(driver)),
        random(seed),
        program(&driver, heap.get(), &shadow, new_streams(driver, 2), seed),
        guest(&driver, heap.get(), &shadow, new_streams(driver, 2), seed + 1) {}

  static std::unique_ptr<Heap> create(FakeDriver& driver) {
    std::string why;
    auto heap = Heap::create(driver, 0, nullptr, FakeDriver::context(), forgetful_options(), &why);
    REQUIRE(heap);
    return heap;
  }

  std::uint64_t below(std::uint64_t bound) { return random() % bound; }

  void repeat(const std::vector<ProgramRequest>& step) {
    program.allow_deviations(false);
    for (int i = 0; i < kMostSteps && heap->statistics().step_plans == 0; ++i) {
      for (const ProgramRequest& request : step) program.request(request);
      program.end_step();
      driver.finish_all_work();
    }
  }

  void deviate(const std::vector<ProgramRequest>& step) {
    program.allow_deviations(below(2) == 0);
    const std::uint64_t rarity = below(2) == 0 ? 5 : 50;
    for (const ProgramRequest& request : step) {
      if (calls_fail && below(30) == 0) let_calls_fail();
      program.request(request);
      if (below(8) == 0) guest.request({below(14 * kSmallPage) + 1, static_cast<std::uint32_t>(below(30) + 1), 0});
      if (below(rarity) == 0) do_something();
    }
    driver.finish_all_work();
  }

  void let_calls_fail() {
    driver.fail_at(below(30) + 1, CUDA_ERROR_UNKNOWN, below(8) + 1);
    driver.refuses_to_unmap = below(4) == 0;
  }
  void let_calls_succeed() {
    driver.fail_at(0);
    driver.refuses_to_unmap = false;
  }

  void do_something() {
    let_calls_succeed();
    const std::uint64_t what = below(12);
    if (what == 0) heap->trim(below(120) * kSmallPage);
    if (what == 1) heap->set_limit(heap->held_bytes() + below(6) * kSmallPage);
    if (what == 2) heap->set_limit(~std::uint64_t{0});
    if (what == 3) peers.push_back(static_cast<int>(below(6)) + 1);
    if (what == 3) REQUIRE(heap->grant_access(peers.back()) == CUDA_SUCCESS);
    if (what == 4) heap->make_room(below(20) * kSmallPage, true);
    if (what == 5) heap->set_release_threshold(nullptr, below(2) == 0 ? ~std::uint64_t{0} : below(120) * kSmallPage);
    if (what == 6) synchronize(*heap, driver);
    if (what == 7) driver.set_capturing(captured, capturing = !capturing);
    if (what == 8 && capturing) REQUIRE_FALSE(heap->allocate(kSmallPage, {captured, 0}, nullptr));
    if (what == 9) use_new_stream();
    if (what > 9) check_blocks(program), check_blocks(guest);
  }

  void use_new_stream() {
    const CUcontext context = below(4) == 0 ? FakeDriver::green_context() : FakeDriver::context();
    const StreamKey stream{driver.new_stream(context), 0};
    const std::uint64_t bytes = below(8 * kSmallPage) + 1;
    if (const auto block = heap->allocate(bytes, stream, nullptr)) {
      shadow.take(*block, bytes, {stream});
      moments.push_back({driver.work(stream)});
      shadow.give(*block, bytes, &moments.back());
      const bool late = below(2) == 0;
      REQUIRE((late ? heap->free_when_complete(*block, stream, stream) : heap->free_async(*block, stream)) ==
              CUDA_SUCCESS);
    }
    heap->stream_destroyed(stream.handle);
    driver.destroy_stream(stream.handle);
  }

  void check_blocks(const Program& of) {
    for (const Live& live : of.live()) {
      const auto backing = heap->backing(live.address);
      REQUIRE(backing);
      std::uint64_t offset = backing->offset;
      auto handle = backing->handles.begin();
      for (std::uint64_t at = 0; at < live.bytes; at += plan::kUnitBytes, offset += plan::kUnitBytes) {
        for (; offset >= handle->bytes; ++handle) offset -= handle->bytes;
        const std::uint64_t physical = handle->id << 40 | offset;
        if (driver.physical(live.address + at) != physical) throw std::logic_error("a block is exported wrongly");
        for (const int peer : peers) driver.physical(live.address + at, peer);  // throws if the peer has no access
      }
    }
  }
};

}  // namespace

TEST_CASE("random programs whose step is planned", "[serve][steps]") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(14, 17, 20, 24));  // whose steps map memory
  const bool scarce = GENERATE(false, true);
  CAPTURE(seed, scarce);
  Setting set(seed, scarce ? 180 : 100000);
  Random random(seed);
  const std::uint64_t carried = GENERATE(as<std::uint64_t>{}, 0, 20 * kSmallPage);
  CAPTURE(carried);
  const std::vector<ProgramRequest> step = random_step(random, carried);
  REQUIRE_NOTHROW(set.repeat(step));
  REQUIRE(set.heap->statistics().step_plans == 1);
  for (int i = 0; i < 8; ++i) REQUIRE_NOTHROW(set.deviate(step));
  set.driver.set_capturing(set.captured, false);
  set.program.finish();
  set.guest.finish();
  set.heap.reset();
  REQUIRE(set.driver.is_clean());
}

TEST_CASE("random programs whose step is planned while calls fail and the host runs out of memory", "[serve][steps]") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(14, 17, 20, 24));
  const bool scarce = GENERATE(false, true);
  const bool fails = GENERATE(false, true);
  CAPTURE(seed, scarce, fails);
  Setting set(seed, scarce ? 180 : 100000);
  Random random(seed);
  const std::vector<ProgramRequest> step = random_step(random, seed % 2 * 20 * kSmallPage);
  set.program.run_out_of_host_memory(700);
  REQUIRE_NOTHROW(set.repeat(step));
  set.program.run_out_of_host_memory(30);
  set.guest.run_out_of_host_memory(10);
  set.calls_fail = fails;
  for (int i = 0; i < 8; ++i) REQUIRE_NOTHROW(set.deviate(step));
  set.let_calls_succeed();
  set.program.run_out_of_host_memory(0);
  set.guest.run_out_of_host_memory(0);
  set.driver.set_capturing(set.captured, false);
  set.program.finish();
  set.guest.finish();
  set.heap.reset();
  REQUIRE(set.driver.holds_nothing());
}
