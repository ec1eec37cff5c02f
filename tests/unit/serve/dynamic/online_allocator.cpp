// SPDX-License-Identifier: Apache-2.0
// One policy with two backends: the library's allocator on the fake driver, and its simulation, give every block of a
// random program with several streams the same place.
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "catch.h"
#include "fake_driver.h"
#include "heaps.h"
#include "interpose/serve/dynamic/dynamic.h"
#include "plan/simulate/null_backend.h"
#include "streams/as_heap.h"

using namespace stalloc;
using namespace stalloc::test;
using serve::CrossStream;
using serve::Dynamic;
using serve::StreamOrder;
using stalloc::StreamKey;

namespace {

constexpr std::uint64_t kMemory = std::uint64_t{1} << 32;
constexpr std::size_t kStreams = 3;

// A simulation backend that uses the order of the library's streams. The same request to the library comes first, which
// has then made a wait if it had no place without one.
class KnowsOrder : public plan::NullBackend {
 public:
  explicit KnowsOrder(StreamOrder* order) : order_(order) {}
  bool make_ready_without_avoidable_wait(std::span<const plan::Range> ranges, plan::StreamIndex stream) noexcept {
    return order_->order_without_avoidable_wait(ranges, static_cast<serve::StreamOrdinal>(stream));
  }

 protected:
  StreamOrder* order_;
};

// Bytes that were never freed are ready, too, as far as the library knows that (free_marks.h).
class KnowsUnused : public KnowsOrder {
 public:
  using KnowsOrder::KnowsOrder;
  bool is_complete(std::span<const plan::Range> ranges) noexcept { return order_->is_complete(ranges); }
};

struct Live {
  plan::Place place;
  std::uint64_t bytes;
};

// Sizes of a few pages, of one page or less, or any sizes.
std::uint64_t random_bytes(std::mt19937& random, bool whole_pages) {
  if (whole_pages) return (1 + random() % (random() % 3 == 0 ? 40 : 4)) * kPage;
  return (1 + random() % (random() % 3 == 0 ? 40 * kPage : kPage) / plan::kUnitBytes) * plan::kUnitBytes;
}

serve::HeapOptions options_for(unsigned seed, CrossStream cross_stream) {
  serve::HeapOptions options = small_options();
  options.cross_stream = cross_stream;
  if (seed % 3 == 0) options.policy.kept_views = 12;
  // Off: in a simulation, idle memory is not in use by the device; here, it always is.
  options.policy.handles_per_repaired = 1 << 20;
  options.policy.held_per_small = 0;
  return options;
}

void require_equal(const auto& counts, const auto& simulated) {
  REQUIRE(counts.views > 0);
  REQUIRE(counts.views == simulated.views);
  REQUIRE(counts.mapped == simulated.mapped);
  REQUIRE(counts.view_hits == simulated.view_hits);
  REQUIRE(counts.handles == simulated.handles);
  REQUIRE(counts.grows == simulated.grows);
}

// The device never completes the work of a stream.
template <class Backend>
void compare(unsigned seed, CrossStream cross_stream, bool whole_pages) {
  const serve::HeapOptions options = options_for(seed, cross_stream);
  FakeDriver driver(kPage, kMemory);
  StreamOrder order(driver, FakeDriver::context(), Dynamic::offset_bytes(kMemory, kPage), kPage);
  stalloc::test::create_events(order, driver, 2 * stalloc::serve::FreeEvents::kMost);
  order.allow_late_events(true);  // streams can wait for each other at any time, as in simulations
  std::string why;
  const auto dynamic = Dynamic::create(driver, 0, options, 0, kPage, &order, &why);
  REQUIRE(dynamic);
  plan::OnlineAllocator<Backend> simulated({dynamic->placement().options(), cross_stream, kMemory << 8},
                                           Backend(&order));
  std::vector<StreamKey> streams;
  for (std::size_t i = 0; i < kStreams; ++i) streams.push_back({driver.new_stream(), 0});
  std::mt19937 random(seed);
  std::vector<Live> live;
  for (int step = 0; step < 1500; ++step) {
    CAPTURE(step);
    const StreamKey stream = streams[random() % kStreams];
    const serve::StreamOrdinal ordinal = order.ordinal(stream);
    if (!live.empty() && (live.size() > 60 || random() % 2 == 0)) {
      std::swap(live[random() % 3 == 0 ? random() % live.size() : live.size() - 1], live.back());
      const auto [place, bytes] = live.back();
      live.pop_back();
      const serve::DeviceBackend::Block block{dynamic->address_of(place), place.view};
      REQUIRE(dynamic->place(block) == place);
      driver.work(stream);
      if (random() % 4 == 0) {
        dynamic->complete_deferred_free();
        simulated.complete_deferred_free();
        dynamic->free(block, bytes, ordinal);
        simulated.free(place, bytes, ordinal);
      } else {
        dynamic->defer_free(block, bytes, ordinal);
        simulated.defer_free(place, bytes, ordinal);
      }
      continue;
    }
    const std::uint64_t bytes = random_bytes(random, whole_pages);
    const bool last_resort = random() % 20 == 0;
    const auto served = dynamic->allocate(bytes, ordinal, last_resort);
    REQUIRE(served);
    REQUIRE(stalloc::test::make_waits(order));
    REQUIRE(simulated.allocate(bytes, ordinal, last_resort) == served);
    live.push_back({*served, bytes});
    REQUIRE(dynamic->physical_bytes() == simulated.placement().physical_bytes());
  }
  require_equal(dynamic->counts(), simulated.counts());
  const bool waits = cross_stream == CrossStream::OrderThenGrow || cross_stream == CrossStream::Share;
  REQUIRE((!waits || order.waits() > 0));
  driver.finish_all_work();
}

}  // namespace

TEST_CASE("the library and its simulation give blocks of several streams the same places", "[serve][online]") {
  const auto seed = GENERATE(range(1U, 7U));
  const auto cross_stream =
      GENERATE(CrossStream::OrderThenGrow, CrossStream::GrowThenOrder, CrossStream::Never, CrossStream::Share);
  CAPTURE(seed, cross_stream);
  compare<KnowsOrder>(seed, cross_stream, true);
  compare<KnowsUnused>(seed, cross_stream, false);
}
