// SPDX-License-Identifier: Apache-2.0
// Programs whose step is planned: how much is held when the plan is taken up, and where requests lie.
#include "plan/running/step_server.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "catch.h"
#include "plan/simulate/simulated_heap.h"

using namespace stalloc;
using plan::Place;
using plan::SimulatedHeap;

namespace {

constexpr std::uint64_t kPage = std::uint64_t{2} << 20;
constexpr std::uint64_t kSmall = kPage / 4;
constexpr std::size_t kRequests = 200;  // in a step

// A program that repeats a step of random requests. The tenth one from its end has `carried_pages`, if that is not 0,
// and lives until the tenth request of the next step. No other lives from one step to the next.
class Program {
 public:
  Program(std::uint32_t seed, std::uint64_t carried_pages) : random_(seed), heap_(options()) {
    while (step_.size() < kRequests) {
      const std::uint64_t largest = random_() % 3 == 0 ? 12 * kPage : 4 * kPage;
      const std::size_t lives = std::min<std::size_t>(random_() % 40 + 1, kRequests - step_.size());
      step_.push_back({(1 + random_() % (largest / plan::kUnitBytes)) * plan::kUnitBytes, lives});
    }
    if (carried_pages > 0) step_[kRequests - kCarried] = {carried_pages * kPage, 2 * kCarried};
  }

  // Makes a step. Every `rarity`th free comes up to three requests late; 0: none does.
  void make_step(std::uint32_t rarity) {
    for (const auto& [bytes, lives] : step_) {
      ++number_;
      for (const Block& block : ends_[number_]) free(block);
      ends_.erase(number_);
      const auto place = heap_.allocate(number_, bytes, 1);
      REQUIRE(place);
      mark_live(*place, bytes);
      if (bytes > kSmall && !is_of_plan(*place, bytes)) ++outside_;
      const bool late = rarity != 0 && random_() % rarity == 0;
      ends_[number_ + lives + (late ? 1 + random_() % 3 : 0)].push_back({number_, *place, bytes});
    }
  }
  void make_steps_until_planned() {
    for (int i = 0; i < 60 && heap_.steps().plans() == 0; ++i) make_step(0);
  }
  // Those of a step that may have slots.
  std::size_t large_requests() const {
    return static_cast<std::size_t>(
        std::count_if(step_.begin(), step_.end(), [](const Wanted& wanted) { return wanted.bytes > kSmall; }));
  }
  // How many of them lay outside of the plan's memory so far.
  std::uint64_t outside() const { return outside_; }
  const SimulatedHeap& heap() const { return heap_; }
  const plan::HandlePlacement& placement() const { return heap_.allocator().placement(); }

 private:
  static constexpr std::size_t kCarried = 10;

  struct Wanted {
    std::uint64_t bytes = 0;
    std::size_t lives = 0;  // in requests
  };
  struct Block {
    std::uint64_t number = 0;
    Place place;
    std::uint64_t bytes = 0;
  };

  // Views that were made before are neither found again nor repaired, so that the program maps memory in every step.
  static plan::SimulatedAllocator::Options options() {
    plan::SimulatedAllocator::Options options = plan::simulation_options(kPage, 1000 * kPage);
    options.placement.policy.searched_views = 0;
    options.placement.policy.handles_per_repaired = ~std::uint64_t{0};
    options.placement.policy.small_bytes = kSmall;
    return options;
  }

  std::vector<plan::Range> ranges_of(Place place, std::uint64_t bytes) const {
    std::vector<plan::Range> ranges;
    placement().translate(place, bytes, ranges);
    return ranges;
  }
  bool is_of_plan(Place place, std::uint64_t bytes) const {
    return placement().is_of_plan(ranges_of(place, bytes).front().begin);
  }
  // No byte is served twice.
  void mark_live(Place place, std::uint64_t bytes) {
    for (const plan::Range& range : ranges_of(place, bytes)) {
      std::vector<plan::Range> taken;
      live_.intersect(range, taken);
      REQUIRE(taken.empty());
      live_.add(range);
    }
  }
  void free(const Block& block) {
    for (const plan::Range& range : ranges_of(block.place, block.bytes)) live_.subtract(range);
    heap_.free(block.number, block.place, block.bytes, 1);
  }

  std::mt19937 random_;
  SimulatedHeap heap_;
  std::vector<Wanted> step_;
  plan::FreeSpace live_;                              // physical bytes
  std::map<std::uint64_t, std::vector<Block>> ends_;  // by the request before which they are freed
  std::uint64_t number_ = 0;
  std::uint64_t outside_ = 0;
};

}  // namespace

TEST_CASE("requests of a planned step find their slots, or other bytes of the plan when frees come late",
          "[plan][running]") {
  const auto seed = GENERATE(1U, 3U, 5U, 8U);
  const auto rarity = GENERATE(0U, 20U, 5U);
  CAPTURE(seed, rarity);
  Program program(seed, 0);
  program.make_steps_until_planned();
  REQUIRE(program.heap().steps().plans() == 1);
  program.make_step(0);
  const std::uint64_t before = program.heap().steps().requests_in_slots();
  const std::uint64_t outside = program.outside();
  for (int i = 0; i < 10; ++i) program.make_step(rarity);
  REQUIRE(program.heap().steps().plans() == 1);
  const std::uint64_t in_slots = program.heap().steps().requests_in_slots() - before;
  const std::uint64_t large = 10 * program.large_requests();
  if (rarity == 0) REQUIRE(in_slots == large);
  REQUIRE(in_slots <= large);
  REQUIRE(in_slots > large * 7 / 10);
  const std::uint64_t elsewhere = large - in_slots;
  REQUIRE((program.outside() - outside) * 3 <= elsewhere);  // most lie in bytes of the plan that no slot needs
}

TEST_CASE("what lives from the step before is not held twice when a plan is taken up", "[plan][running]") {
  const auto seed = GENERATE(range(2U, 10U));
  CAPTURE(seed);
  constexpr std::uint64_t kCarriedPages = 20;  // of about 120: if they were held twice, no plan would be taken up
  Program program(seed, kCarriedPages);
  program.make_steps_until_planned();
  REQUIRE(program.heap().steps().plans() == 1);
  const std::uint64_t before = program.heap().steps().requests_in_slots();
  program.make_step(0);
  program.make_step(0);
  REQUIRE(program.placement().peak_physical_bytes() < program.placement().physical_bytes() + kCarriedPages / 2 * kPage);
  REQUIRE(program.heap().steps().requests_in_slots() - before == 2 * program.large_requests());
}
