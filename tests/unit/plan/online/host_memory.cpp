// SPDX-License-Identifier: Apache-2.0
// Random programs while the host runs out of memory at any moment: bytes may be forgotten, but none is served twice,
// and every handle that was created has an owner.
#include <cstdint>
#include <map>
#include <new>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "catch.h"
#include "host_memory.h"
#include "plan/placement/units.h"
#include "plan/simulate/null_backend.h"

using namespace stalloc::plan;
using stalloc::test::allocations_left;
using stalloc::test::Plenty;

namespace {

constexpr std::uint64_t kPage = 8 * kUnitBytes;

// Knows which handles exist and what is mapped at the addresses of views.
class Recorded : public NullBackend {
 public:
  bool create(std::uint64_t at, std::span<Handle> handles) noexcept {
    const Plenty plenty;
    NullBackend::create(at, handles);
    for (const Handle& handle : handles) {
      is_sound_ = existing_.emplace(at, handle.bytes).second && is_sound_;
      at += handle.bytes;
    }
    return true;
  }
  bool destroy(std::uint64_t at, const Handle& handle) noexcept {
    is_sound_ = existing_.erase(at) == 1 && is_sound_;
    return NullBackend::destroy(at, handle);
  }
  bool map(VirtualAddress begin, std::span<const Handle> handles) noexcept {
    const Plenty plenty;
    for (std::uint64_t at = begin.offset; const Handle& handle : handles) {
      is_sound_ = mapped_.emplace(at, handle.bytes).second && is_sound_;
      at += handle.bytes;
    }
    return NullBackend::map(begin, handles);
  }
  bool unmap(VirtualAddress begin, std::span<const Handle> handles) noexcept {
    for (std::uint64_t at = begin.offset; const Handle& handle : handles) {
      is_sound_ = mapped_.erase(at) == 1 && is_sound_;
      at += handle.bytes;
    }
    return NullBackend::unmap(begin, handles);
  }

  // Whether nothing was created or mapped where something existed already, or undone where nothing did.
  [[nodiscard]] bool is_sound() const { return is_sound_; }
  [[nodiscard]] const std::map<std::uint64_t, std::uint64_t>& existing() const { return existing_; }

 private:
  std::map<std::uint64_t, std::uint64_t> existing_;  // bytes of handles, by physical offset
  std::map<std::uint64_t, std::uint64_t> mapped_;    // the same, by address
  bool is_sound_ = true;
};

struct Live {
  Place place;
  std::uint64_t bytes = 0;
  std::vector<Range> ranges;
};

}  // namespace

TEST_CASE("where host memory runs out, no byte is served twice and no handle is lost", "[plan][online]") {
  const auto seed = GENERATE(range(1U, 21U));
  CAPTURE(seed);
  std::mt19937 random(seed);
  SimulatedAllocator::Options simulated = simulation_options(kPage, 4000 * kPage);
  OnlineAllocator<Recorded>::Options options;
  options.placement = simulated.placement;
  options.placement.policy.small_bytes = kPage / 2;
  options.placement.policy.smallest_stitched = kPage;
  options.view_bytes = simulated.view_bytes;
  OnlineAllocator<Recorded> allocator(options);
  std::vector<Live> live;
  FreeSpace taken;
  int failures = 0;
  const auto fails = [&](auto act) {
    allocations_left = random() % 4 == 0 ? 1 + random() % 12 : 0;
    bool failed = false;
    try {
      act();
    } catch (const std::bad_alloc&) {
      failed = true;
      ++failures;
    }
    allocations_left = 0;
    return failed;
  };
  for (int step = 0; step < 3000; ++step) {
    if (!live.empty() && (live.size() > 60 || random() % 2 == 0)) {
      std::swap(live[random() % live.size()], live.back());
      for (const Range& range : live.back().ranges) taken.subtract(range);
      const Live ended = live.back();
      live.pop_back();
      fails([&] { allocator.free(ended.place, ended.bytes, 1); });
    } else if (random() % 50 == 0) {
      fails([&] {
        allocator.backend().poll_frees();
        allocator.memory().reclaim((1 + random() % 40) * kPage, false);
      });
    } else {
      const std::uint64_t bytes = (1 + random() % (random() % 4 == 0 ? 8 : 200)) * kUnitBytes;
      std::optional<Place> place;
      if (fails([&] { place = allocator.allocate(bytes, 1); })) continue;
      REQUIRE(place);
      Live served{*place, bytes, {}};
      for (const Range& range : allocator.ranges(*place, bytes)) {
        std::vector<Range> shared;
        taken.intersect(range, shared);
        REQUIRE(shared.empty());
        served.ranges.push_back(range);
      }
      for (const Range& range : served.ranges) taken.add(range);
      live.push_back(std::move(served));
    }
    REQUIRE(allocator.backend().is_sound());
    REQUIRE(allocator.backend().existing().size() == allocator.placement().handles().size());
  }
  REQUIRE(failures > 10);
}
