// SPDX-License-Identifier: Apache-2.0
// Programs whose steps are planned while they run. Whatever they do before and afterwards, no byte is served twice, and
// none before its latest use is complete.
#include <iterator>
#include <memory>
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
using serve::HeapOptions;
using serve::Statistics;

namespace {

constexpr int kUntilPlanned = 26;  // steps
// Programs whose steps map memory as long as they are not planned.
constexpr std::uint64_t kMappingSeeds[] = {2, 9};

std::unique_ptr<Heap> make_heap(FakeDriver& driver, const HeapOptions& options) {
  std::string why;
  auto heap = Heap::create(driver, 0, nullptr, FakeDriver::context(), options, &why);
  REQUIRE(heap);
  return heap;
}

// A program of some streams, which repeats its step exactly until deviations are allowed.
struct Setting {
  FakeDriver driver;
  std::unique_ptr<Heap> heap;
  Random random;
  std::vector<ProgramRequest> step;
  Shadow shadow;
  std::vector<StreamKey> streams;
  Program program;

  explicit Setting(std::uint64_t seed, const HeapOptions& options = forgetful_options(),
                   std::uint64_t device_bytes = std::uint64_t{1} << 30, std::size_t stream_count = 2)
      : driver(kSmallPage, device_bytes),
        heap(make_heap(driver, options)),
        random(seed),
        step(random_step(random)),
        shadow(&driver),
        streams(new_streams(driver, stream_count)),
        program(&driver, heap.get(), &shadow, streams, seed) {
    program.allow_deviations(false);
  }

  // Makes whole steps, after each of which the program waits for its work. `each` is called after each request.
  template <class Each>
  void run(int steps, Each each) {
    for (int i = 0; i < steps; ++i) {
      for (const ProgramRequest& request : step) program.request(request), each();
      program.finish();
      driver.finish_all_work();
    }
  }
  void run(int steps) {
    run(steps, [] {});
  }
  Statistics statistics() const { return heap->statistics(); }
  // Whether a step of the program maps memory.
  bool maps() {
    const std::uint64_t before = statistics().mapping_calls_after_start;
    run(1);
    return statistics().mapping_calls_after_start != before;
  }
};

}  // namespace

TEST_CASE("a step that repeats and maps memory is planned", "[serve][steps]") {
  const std::uint64_t seed = GENERATE(from_range(std::begin(kMappingSeeds), std::end(kMappingSeeds)));
  CAPTURE(seed);
  Setting set(seed);
  set.run(kUntilPlanned);
  const Statistics planned = set.statistics();
  REQUIRE(planned.step_plans == 1);
  REQUIRE(planned.step_requests > 0);
  set.run(3);
  const Statistics after = set.statistics();
  REQUIRE(after.mapping_calls_after_start == planned.mapping_calls_after_start);
  REQUIRE(after.physical_peak == planned.physical_peak);
  REQUIRE(after.step_requests - planned.step_requests > kRequestsOfStep);
}

TEST_CASE("a plan is taken up where the program has waited for its work", "[serve][steps]") {
  const std::uint64_t seed = GENERATE(1, 8, 9);  // programs of which little lives where they wait
  const bool waits = GENERATE(false, true);
  CAPTURE(seed, waits);
  Setting set(seed, forgetful_options(), std::uint64_t{1} << 30, 1);
  for (int i = 0; i < 2 * kUntilPlanned; ++i) {
    for (std::size_t request = 0; request < set.step.size(); ++request) {
      set.program.request(set.step[request]);
      if (request != 3) continue;  // a little after the beginning of each step
      const CUdeviceptr small = set.heap->allocate(512, set.streams[0], nullptr).value_or(0);
      if (waits) synchronize(*set.heap, set.driver);
      REQUIRE(set.heap->free_async(small, set.streams[0]) == CUDA_SUCCESS);
    }
    set.program.finish();
  }
  REQUIRE(set.statistics().step_plans == (waits ? 1 : 0));
}

TEST_CASE("the views of a plan count as views that are mapped", "[serve][steps]") {
  const std::uint64_t seed = GENERATE(from_range(std::begin(kMappingSeeds), std::end(kMappingSeeds)));
  CAPTURE(seed);
  Setting set(seed);
  set.run(kUntilPlanned + 3);
  REQUIRE(set.statistics().step_plans == 1);
  const std::uint64_t views = set.statistics().views;
  REQUIRE(views > 0);
  // Nothing lives, so everything is unmapped, and each view in one call or more.
  const std::uint64_t before = set.statistics().mapping_calls_after_start;
  set.heap->trim(0);
  REQUIRE(set.statistics().views == 0);
  REQUIRE(set.statistics().mapping_calls_after_start - before >= views);
}

TEST_CASE("a request without a stream gets the plan's bytes before much more memory is held", "[serve][steps]") {
  const std::uint64_t seed = GENERATE(from_range(std::begin(kMappingSeeds), std::end(kMappingSeeds)));
  CAPTURE(seed);
  Setting set(seed);
  set.run(kUntilPlanned);
  REQUIRE(set.statistics().step_plans == 1);
  const std::uint64_t before = set.statistics().physical;
  const auto block = set.heap->allocate_sync(before / 2);
  REQUIRE(block);
  REQUIRE(set.statistics().physical == before);
  REQUIRE(set.heap->free_sync(*block) == CUDA_SUCCESS);
  set.run(2);
  REQUIRE(set.statistics().step_plans == 1);
}

TEST_CASE("a program that gives nothing back keeps its views and the plan of its step", "[serve][steps]") {
  Setting set(kMappingSeeds[0]);
  set.run(kUntilPlanned + 3);
  const Statistics before = set.statistics();
  REQUIRE(before.step_plans == 1);
  set.heap->trim(before.physical);
  REQUIRE(set.statistics().views == before.views);
  set.run(1);
  REQUIRE(set.statistics().mapping_calls_after_start == before.mapping_calls_after_start);
  REQUIRE(set.statistics().step_requests > before.step_requests);
}

TEST_CASE("a program leaves the plan of its step, and another is made", "[serve][steps]") {
  const std::uint64_t seed = GENERATE(from_range(std::begin(kMappingSeeds), std::end(kMappingSeeds)));
  CAPTURE(seed);
  Setting set(seed);
  set.run(kUntilPlanned);
  REQUIRE(set.statistics().step_plans == 1);
  SECTION("for a while") {
    set.program.allow_deviations(true);
    REQUIRE_NOTHROW(set.run(4, [&] {
      if (set.random() % 50 == 0) set.driver.finish_all_work();
    }));
    set.program.allow_deviations(false);
    set.run(2);
    const std::uint64_t before = set.statistics().step_requests;
    set.run(1);
    REQUIRE(set.statistics().step_requests > before);
    REQUIRE(set.statistics().step_plans == 1);
  }
  SECTION("for good") {
    set.step = random_step(set.random);
    set.run(10);
    const std::uint64_t before = set.statistics().step_requests;
    set.run(1);
    REQUIRE(set.statistics().step_requests == before);
    set.run(kUntilPlanned);
    REQUIRE_FALSE(set.maps());
  }
  SECTION("and gives its memory back") {
    set.program.finish();
    synchronize(*set.heap, set.driver);
    set.heap->trim(0);
    REQUIRE(set.statistics().physical == 0);
    set.run(kUntilPlanned);
    REQUIRE_FALSE(set.maps());
  }
  set.program.finish();
  synchronize(*set.heap, set.driver);
  REQUIRE(set.statistics().dynamic_live == 0);
  set.heap->trim(0);
  REQUIRE(set.statistics().physical == 0);
  set.heap.reset();
  REQUIRE(set.driver.is_clean());
}

TEST_CASE("planned steps while driver calls fail and memory is given back", "[serve][steps]") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(8, 9, 20, 24));
  CAPTURE(seed);
  Setting set(seed);
  set.run(kUntilPlanned / 2);
  REQUIRE_NOTHROW(set.run(kUntilPlanned, [&] {
    if (set.random() % 200 == 0) set.driver.fail_at(set.random() % 40 + 1);
    if (seed % 3 == 0 && set.random() % 1000 == 0) set.heap->trim(set.random() % 20 * kSmallPage);
  }));
  set.driver.fail_at(0);
  set.program.finish();
  set.heap.reset();
  REQUIRE(set.driver.holds_nothing());
}

TEST_CASE("a step is planned again after the driver has refused the memory of its plan", "[serve][steps]") {
  constexpr std::uint64_t kSeed = 1;  // the program goes on to map memory
  std::size_t requests = 0;
  std::size_t taken_up = 0;  // the request at which the plan is taken up
  Setting measured(kSeed);
  measured.run(kUntilPlanned, [&] {
    ++requests;
    if (taken_up == 0 && measured.statistics().step_plans == 1) taken_up = requests;
  });
  REQUIRE(taken_up > 0);
  Setting set(kSeed);
  requests = 0;
  set.run(kUntilPlanned, [&] { set.driver.refuses_to_map = ++requests == taken_up - 1; });
  REQUIRE(set.statistics().step_plans == 0);
  set.run(60);
  REQUIRE(set.statistics().step_plans == 1);
  REQUIRE_FALSE(set.maps());
}

TEST_CASE("planned steps in scarce memory", "[serve][steps]") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(8, 9, 20, 24));
  CAPTURE(seed);
  Setting measured(seed);
  measured.run(kUntilPlanned);
  Setting set(seed, forgetful_options(), measured.statistics().physical_peak + 24 * kSmallPage);
  set.run(kUntilPlanned);
  REQUIRE(set.program.refused() == 0);
  set.program.allow_deviations(true);
  REQUIRE_NOTHROW(set.run(4));
}

// The program holds more than a limit that is set while it runs, or another one takes the rest of the device. Then
// memory that is released to take up a plan could not be created again.
TEST_CASE("no request is refused because of a plan when memory becomes scarce", "[serve][steps]") {
  constexpr std::uint64_t kSeed = 1;
  const bool by_limit = GENERATE(true, false);
  CAPTURE(by_limit);
  const auto refused = [&](const HeapOptions& options) {
    Setting set(kSeed, options);
    set.run(kUntilPlanned / 2);  // before the plan is taken up
    std::size_t free = 0;
    std::size_t total = 0;
    CUdeviceptr others = 0;
    const std::uint64_t held = set.statistics().physical;
    if (by_limit) {
      set.heap->set_limit(held - held / 4);
    } else {
      REQUIRE(set.driver.memory_info(&free, &total) == CUDA_SUCCESS);
      REQUIRE(set.driver.allocate_plain(&others, free) == CUDA_SUCCESS);
    }
    set.run(kUntilPlanned);
    if (others != 0) set.driver.free_plain(others);
    return set.program.refused();
  };
  HeapOptions never = forgetful_options();
  never.policy.planned_repetitions = plan::kNeverRepeated;
  REQUIRE(refused(forgetful_options()) <= refused(never));
}

TEST_CASE("a step that maps nothing is not planned", "[serve][steps]") {
  HeapOptions options = forgetful_options();
  options.policy.searched_views = small_options().policy.searched_views;
  Setting set(1, options);
  set.step.assign(kRequestsOfStep, {2 * kSmallPage, 3, 0});
  set.run(kUntilPlanned);
  REQUIRE(set.statistics().step_plans == 0);
}

TEST_CASE("no step is planned where the policy says so", "[serve][steps]") {
  HeapOptions options = forgetful_options();
  options.policy.planned_repetitions = plan::kNeverRepeated;
  Setting set(1, options);
  set.run(kUntilPlanned);
  REQUIRE(set.statistics().step_plans == 0);
}
