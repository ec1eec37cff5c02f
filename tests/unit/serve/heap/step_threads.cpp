// SPDX-License-Identifier: Apache-2.0
// A program whose step is planned, and then followed on one thread while other threads use the heap in every other way.
// No byte is served twice, and none before its latest use is complete.
#include <atomic>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
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

constexpr int kMostSteps = 100;  // until it is planned
constexpr int kDisturbedSteps = 12;

struct Ignoring final : Heap::Visitor {
  void home(CUdeviceptr /*address*/, std::uint64_t /*bytes*/) override {}
  void stitched(CUdeviceptr /*address*/, std::uint64_t /*bytes*/) override {}
  void used_by_stitched(CUdeviceptr /*address*/, std::uint64_t /*bytes*/) override {}
};

// A program of several threads. The main thread repeats a step, alone until it is planned, since the other threads
// decide whether it still maps memory. From then on, for each of its requests, the others do one thing.
class Threads {
 public:
  explicit Threads(std::uint64_t seed) : seed_(seed), driver_(kSmallPage, std::uint64_t{1} << 30), shadow_(&driver_) {
    std::string why;
    heap_ = Heap::create(driver_, 0, nullptr, FakeDriver::context(), forgetful_options(), &why);
    REQUIRE(heap_);
  }

  void run() {
    Random random(seed_);
    const std::vector<ProgramRequest> step = random_step(random);
    Program& program = new_program(0);
    program.allow_deviations(false);
    for (int i = 0; i < kMostSteps && plans() == 0; ++i) repeat(step, program);
    std::vector<std::thread> threads;
    threads.emplace_back([this] { guard([this] { request(1); }); });
    threads.emplace_back([this] { guard([this] { request(2); }); });
    threads.emplace_back([this] { guard([this] { call(); }); });
    guard([&] {
      for (int i = 0; i < kDisturbedSteps; ++i) repeat(step, program);
    });
    ended_ = true;
    for (std::thread& thread : threads) thread.join();
    driver_.fail_at(0);  // a free that the driver refused would leave its block live
    for (Program& ended : programs_) ended.finish();
  }

  std::uint64_t plans() const { return heap_->statistics().step_plans; }
  // Whether nothing is left on the device after the heap has ended.
  bool leaves_nothing() {
    heap_.reset();
    return driver_.holds_nothing();
  }
  const std::vector<std::string>& broken() const { return broken_; }

 private:
  void guard(const std::function<void()>& body) {
    try {
      body();
    } catch (const std::exception& error) {
      const std::lock_guard<std::mutex> lock(mutex_);
      broken_.emplace_back(error.what());
    }
  }

  Program& new_program(std::uint64_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return programs_.emplace_back(&driver_, heap_.get(), &shadow_, new_streams(driver_, 2), 10 * seed_ + number);
  }

  // False once the main thread has ended.
  bool wait_for_request(std::uint64_t number) const {
    while (requests_ < number && !ended_) std::this_thread::yield();
    return !ended_;
  }

  void repeat(const std::vector<ProgramRequest>& step, Program& program) {
    for (const ProgramRequest& request : step) program.request(request), ++requests_;
    program.finish();
    driver_.finish_all_work();
  }

  // Requests without a place in the plan.
  void request(std::uint64_t number) {
    Random random(10 * seed_ + number);
    Program& program = new_program(number);
    for (std::uint64_t done = requests_; wait_for_request(done); ++done) {
      const std::uint64_t most = random() % 4 == 0 ? 8 * kSmallPage : kSmallPage / 4;
      program.request({random() % most + 1, static_cast<std::uint32_t>(random() % 20 + 1), random()});
    }
  }

  // All other functions of the heap.
  void call() {
    Random random(10 * seed_ + 3);
    Ignoring ignoring;
    for (std::uint64_t done = requests_; wait_for_request(done); ++done) {
      const CUdeviceptr at = heap_->addresses_for_small().begin - random() % (100 * kSmallPage);
      const std::uint64_t what = random() % 8;
      if (what == 0) (void)heap_->statistics().waits;
      if (what == 1) (void)heap_->find_live(at);
      if (what == 2) heap_->describe(ignoring);
      if (what == 3) (void)heap_->backing(at);
      if (what == 4) (void)(heap_->free_bytes() + heap_->largest_free() + heap_->held_bytes());
      if (what == 5) use_new_stream(random);
      if (what == 6) synchronize(*heap_, driver_);
      disturb(random);
    }
  }

  void disturb(Random& random) {
    const std::uint64_t what = random() % 80;
    if (what == 0) heap_->trim(random() % 2 * kSmallPage);
    if (what == 1) heap_->set_limit(heap_->held_bytes() + random() % 4 * kSmallPage);
    if (what == 2) heap_->set_limit(~std::uint64_t{0});
    if (what == 3) heap_->grant_access(static_cast<int>(random() % 4) + 1);
    if (what == 4) heap_->make_room(random() % 8 * kSmallPage, true);
    if (what == 5) heap_->set_release_threshold(nullptr, random() % 200 * kSmallPage);
    if (what == 6) driver_.fail_at(random() % 20 + 1);
  }

  // Allocates and frees on a stream of its own, and destroys it while the free may be pending.
  void use_new_stream(Random& random) {
    if (random() % 32 != 0) return;
    const StreamKey stream{driver_.new_stream(), 0};
    const std::uint64_t bytes = random() % (4 * kSmallPage) + 1;
    if (const auto block = heap_->allocate(bytes, stream, nullptr)) {
      shadow_.take(*block, bytes, {stream});
      const Moments& until = moments_.emplace_back(Moments{driver_.work(stream)});
      shadow_.give(*block, bytes, &until);
      const bool late = random() % 2 == 0;
      // The driver may be made to fail once.
      while ((late ? heap_->free_when_complete(*block, stream, stream) : heap_->free_async(*block, stream)) !=
             CUDA_SUCCESS) {
      }
    }
    heap_->stream_destroyed(stream.handle);
    driver_.destroy_stream(stream.handle);
  }

  const std::uint64_t seed_;
  FakeDriver driver_;
  std::unique_ptr<Heap> heap_;
  std::deque<Moments> moments_;  // of `call`
  Shadow shadow_;
  std::deque<Program> programs_;
  std::mutex mutex_;
  std::vector<std::string> broken_;
  std::atomic<std::uint64_t> requests_{0};  // of the main thread
  std::atomic<bool> ended_{false};
};

}  // namespace

TEST_CASE("a step is planned and followed while other threads use the heap", "[serve][random][threads]") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(1, 8));  // whose steps map memory
  CAPTURE(seed);
  Threads threads(seed);
  threads.run();
  REQUIRE(threads.broken() == std::vector<std::string>{});
  REQUIRE(threads.plans() > 0);
  REQUIRE(threads.leaves_nothing());
}
