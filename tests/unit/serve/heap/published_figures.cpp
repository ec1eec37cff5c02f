// SPDX-License-Identifier: Apache-2.0
// The figures that other processes read equal the statistics of the heap, whatever the program does.
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "catch.h"
#include "fake_driver.h"
#include "heaps.h"
#include "interpose/serve/heap/heap.h"

using namespace stalloc;
using namespace stalloc::test;
using serve::Heap;
using serve::PublishedFigures;
using stalloc::StreamKey;

namespace {

void require_same(const PublishedFigures& shown, const serve::Statistics& stated) {
  REQUIRE(shown.live == stated.planned_live + stated.dynamic_live + stated.unplanned_live);
  REQUIRE(shown.live_peak == stated.live_peak);
  REQUIRE(shown.served_live_peak == stated.served_live_peak);
  REQUIRE(shown.planned_requests == stated.planned_requests);
  REQUIRE(shown.dynamic_requests == stated.dynamic_requests);
  REQUIRE(shown.unplanned_requests == stated.unplanned_requests);
  REQUIRE(shown.physical == stated.physical);
  REQUIRE(shown.physical_peak == stated.physical_peak);
  REQUIRE(shown.mapping_calls_at_start == stated.mapping_calls_at_start);
  REQUIRE(shown.mapping_calls_after_start == stated.mapping_calls_after_start);
  REQUIRE(shown.misses == stated.misses);
}

}  // namespace

TEST_CASE("the published figures follow every request, free, miss and trim", "[serve][shown]") {
  FakeDriver driver{kPage, 64 * kPage};
  const std::vector<StreamKey> streams = {{driver.new_stream(), 0}, {driver.new_stream(), 0}};
  const auto pool = reinterpret_cast<CUmemoryPool>(0x77);  // created by the program
  std::string why;
  auto heap = Heap::create(driver, 0, nullptr, FakeDriver::context(), small_options(), &why);
  REQUIRE(heap != nullptr);
  const bool from_the_start = GENERATE(true, false);
  PublishedFigures shown{};
  if (from_the_start) heap->publish_in(&shown);

  std::vector<std::pair<CUdeviceptr, StreamKey>> live;
  std::mt19937 random(7);
  for (int step = 0; step < 600; ++step) {
    if (step == 300) heap->publish_in(&shown);
    const StreamKey stream = streams[random() % 2];
    if (const auto action = random() % 8; action < 4) {
      const auto address = heap->allocate(1 + random() % (8 * kPage), stream, action == 0 ? pool : nullptr);
      if (address) live.emplace_back(*address, stream);
    } else if (action < 7 && !live.empty()) {
      const std::size_t chosen = random() % live.size();
      REQUIRE(heap->free_async(live[chosen].first, live[chosen].second) == CUDA_SUCCESS);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(chosen));
    } else if (action == 7) {
      heap->note_unplanned_sync(0x1000 + random() % 16, 100);
      heap->trim(0);
    }
    if (from_the_start || step >= 300) require_same(shown, heap->statistics());
  }
  REQUIRE(shown.served == 1);
  REQUIRE(shown.misses > 0);  // the card was too small at times
  heap.reset();
  REQUIRE(shown.live == 0);
  REQUIRE(shown.physical == 0);
  REQUIRE(shown.physical_peak > 0);
}
