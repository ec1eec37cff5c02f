// SPDX-License-Identifier: Apache-2.0
// The simulated allocators, against sequences worked out by hand from PyTorch's rules, and against each other.
#include "plan/simulate/simulate.h"

#include <random>

#include "catch.h"
#include "plan/lifetimes.h"
#include "plan/planner.h"
#include "plan/simulate/native_peak.h"
#include "plan/simulate/simulate_caching.h"
#include "samples.h"

using namespace stalloc::plan;
using stalloc::test::TraceBuilder;

namespace {

constexpr std::uint64_t kKiB = 1 << 10;
constexpr std::uint64_t kMiB = 1 << 20;
using Segments = CachingAllocator::Segments;

std::uint64_t held_for(std::uint64_t bytes, Segments segments = Segments::Fixed) {
  CachingAllocator allocator(segments);
  allocator.allocate(bytes, 0);
  return allocator.held_bytes();
}

}  // namespace

TEST_CASE("the caching allocator's segments have the sizes that PyTorch asks for") {
  REQUIRE(held_for(1) == 2 * kMiB);
  REQUIRE(held_for(kMiB) == 2 * kMiB);
  REQUIRE(held_for(kMiB + 1) == 20 * kMiB);
  REQUIRE(held_for(10 * kMiB - 512) == 20 * kMiB);
  REQUIRE(held_for(10 * kMiB) == 10 * kMiB);
  REQUIRE(held_for(10 * kMiB + 1) == 12 * kMiB);
}

TEST_CASE("large blocks are split only where more than a mebibyte is left") {
  CachingAllocator allocator(Segments::Fixed);
  const auto first = allocator.allocate(20 * kMiB, 0);
  allocator.free(first);
  allocator.allocate(19 * kMiB, 0);  // keeps all 20
  allocator.allocate(1536 * kKiB, 0);
  REQUIRE(allocator.held_bytes() == 40 * kMiB);

  CachingAllocator other(Segments::Fixed);
  other.free(other.allocate(20 * kMiB, 0));
  other.allocate(18 * kMiB, 0);  // leaves 2
  other.allocate(1536 * kKiB, 0);
  REQUIRE(other.held_bytes() == 20 * kMiB);
}

TEST_CASE("small blocks are split down to 512 bytes and fill their segments") {
  CachingAllocator allocator(Segments::Fixed);
  for (int i = 0; i < 4096; ++i) allocator.allocate(1 + static_cast<std::uint64_t>(i % 512), 0);
  REQUIRE(allocator.held_bytes() == 2 * kMiB);
  allocator.allocate(1, 0);
  REQUIRE(allocator.held_bytes() == 4 * kMiB);
}

TEST_CASE("freed neighbors merge, in either order, and pools and streams keep apart") {
  for (const bool forward : {true, false}) {
    CachingAllocator allocator(Segments::Fixed);
    const auto a = allocator.allocate(6 * kMiB, 0);
    const auto b = allocator.allocate(6 * kMiB, 0);
    const auto c = allocator.allocate(8 * kMiB, 0);
    REQUIRE(allocator.held_bytes() == 20 * kMiB);
    for (const auto block : forward ? std::vector{a, b, c} : std::vector{c, b, a}) allocator.free(block);
    allocator.allocate(20 * kMiB, 0);
    REQUIRE(allocator.held_bytes() == 20 * kMiB);
    allocator.allocate(2 * kMiB, 1);
    REQUIRE(allocator.held_bytes() == 40 * kMiB);
    allocator.allocate(kMiB, 1);
    REQUIRE(allocator.held_bytes() == 42 * kMiB);
  }
}

TEST_CASE("the smallest block that is large enough is taken") {
  CachingAllocator allocator(Segments::Fixed);
  const auto large = allocator.allocate(64 * kMiB, 0);
  const auto small = allocator.allocate(32 * kMiB, 0);
  allocator.free(large);
  allocator.free(small);
  allocator.allocate(30 * kMiB, 0);  // from the 32
  allocator.allocate(64 * kMiB, 0);
  REQUIRE(allocator.held_bytes() == 96 * kMiB);
}

TEST_CASE("of equal blocks the one in the latest segment is taken: CUDA places it lowest") {
  CachingAllocator allocator(Segments::Fixed);
  const auto first = allocator.allocate(12 * kMiB, 0);
  const auto latest = allocator.allocate(12 * kMiB, 0);
  allocator.free(first);
  allocator.free(latest);
  REQUIRE(allocator.allocate(12 * kMiB, 0) == latest);
}

TEST_CASE("expandable segments grow at their end by what is missing, in pages of 20 MiB") {
  REQUIRE(held_for(1, Segments::Expandable) == 2 * kMiB);
  REQUIRE(held_for(2 * kMiB, Segments::Expandable) == 20 * kMiB);
  REQUIRE(held_for(21 * kMiB, Segments::Expandable) == 40 * kMiB);

  CachingAllocator allocator(Segments::Expandable);
  const auto a = allocator.allocate(30 * kMiB, 0);  // maps 40, leaves 10
  allocator.allocate(25 * kMiB, 0);                 // 10 and 20 more, leaves 5
  REQUIRE(allocator.held_bytes() == 60 * kMiB);
  allocator.free(a);                 // a hole of 30
  allocator.allocate(4 * kMiB, 0);   // the end could grow: the hole goes first
  allocator.allocate(26 * kMiB, 0);  // fills the hole
  REQUIRE(allocator.held_bytes() == 60 * kMiB);
  allocator.allocate(26 * kMiB, 0);  // 5 at the end and two pages
  REQUIRE(allocator.held_bytes() == 100 * kMiB);
}

TEST_CASE("only what a framework's allocator is asked for is compared") {
  TraceBuilder trace;
  trace.alloc_sync(64 * kMiB);  // a library's workspace
  const auto tensor = trace.alloc(30 * kMiB);
  trace.flags = static_cast<std::uint8_t>(stalloc::tracefb::EventFlags::Captured);
  trace.alloc(40 * kMiB);
  trace.flags = 0;
  trace.free(tensor);
  trace.alloc(10 * kMiB);
  const Problem problem = framework_requests(find_lifetimes(trace.trace()).devices.at(0));
  REQUIRE(problem.requests.size() == 4);
  const PeakMemory held = simulate_caching(problem);
  REQUIRE(held.live_bytes == 30 * kMiB);
  REQUIRE(held.held_bytes == 30 * kMiB);

  TraceBuilder plain;  // a program that knows only cudaMalloc
  plain.alloc_sync(64 * kMiB);
  REQUIRE(simulate_caching(framework_requests(find_lifetimes(plain.trace()).devices.at(0))).held_bytes == 64 * kMiB);
}

TEST_CASE("nothing asked for, nothing held") {
  const Problem problem;
  REQUIRE(simulate_caching(problem).held_bytes == 0);
  REQUIRE(simulate_expandable(problem).held_bytes == 0);
  REQUIRE(simulate_online(problem, 2 * kMiB).held_bytes == 0);
}

TEST_CASE("no allocator holds less than is live, and stitching comes near it") {
  std::mt19937_64 random(11);
  for (int round = 0; round < 20; ++round) {
    Problem problem;
    for (std::size_t i = 0; i < 400; ++i) {
      Request& request = problem.requests.emplace_back();
      request.size = 1 + random() % (random() % 2 == 0 ? 64 * kMiB : 64 * kKiB);
      request.stream = static_cast<std::uint32_t>(random() % 2);
      request.until = random() % 8 == 0 ? kNever : i + 1 + random() % 60;
    }
    const std::uint64_t live = peak_live_bytes(problem);
    for (const PeakMemory& held : {simulate_caching(problem), simulate_expandable(problem)}) {
      REQUIRE(held.live_bytes == live);
      REQUIRE(held.held_bytes >= live);
    }
    const std::uint64_t online = simulate_online(problem, 2 * kMiB).held_bytes;
    REQUIRE(online >= live);
    REQUIRE(online <= live + live / 10);
  }
}

TEST_CASE("a plan is charged for what is served beside it") {
  // 4 MiB that stay, then 12 and 16 MiB in turn.
  Problem problem;
  problem.repeats = true;
  for (std::size_t i = 0; i < 21; ++i) {
    Request& request = problem.requests.emplace_back();
    request.id = i;
    request.size = i == 0 ? 4 * kMiB : i % 2 == 0 ? 16 * kMiB : 12 * kMiB;
    request.until = i == 0 ? kNever : i + 1;
  }
  const auto planned = plan_device(problem, {});
  REQUIRE(planned.ok());
  DevicePlan plan = planned.value.plan;
  REQUIRE(plan.body == 2);
  REQUIRE(plan.physical_bytes == 20 * kMiB);
  REQUIRE(simulate_planned(problem, plan).held_bytes == 20 * kMiB);
  REQUIRE(simulate_planned(problem, plan).live_bytes == 20 * kMiB);
  for (std::size_t i = plan.prologue; i < plan.prologue + plan.body; ++i) {
    if (plan.slots[i].size == 12 * kMiB) plan.slots[i].kind = SlotKind::PassThrough;
  }
  REQUIRE(simulate_planned(problem, plan).held_bytes == 32 * kMiB);
}

TEST_CASE("what passes a framework's allocator by is the rest, without probes") {
  Problem problem;
  for (std::uint32_t i = 0; i < 4; ++i) {
    Request& request = problem.requests.emplace_back();
    request.size = (i + 1) * kMiB;
    request.allocation_stream = i < 2 ? kEveryStream : 0;
  }
  problem.requests[3].pass = PassReason::Probe;
  const Problem outside = outside_requests(problem);
  REQUIRE(outside.requests[0].bytes() == kMiB);
  REQUIRE(outside.requests[1].bytes() == 2 * kMiB);
  REQUIRE(outside.requests[2].bytes() == 0);
  REQUIRE(outside.requests[3].bytes() == 0);
}

TEST_CASE("the native allocator's peak says which bytes are free and why") {
  // Two large segments; the first is cut by a request that stays, and its rest is too small for what comes then.
  Problem problem;
  const auto add = [&problem](std::uint64_t bytes, std::uint64_t until, std::uint32_t stream) {
    Request& request = problem.requests.emplace_back();
    request.size = bytes;
    request.until = until;
    request.stream = stream;
  };
  add(12 * kMiB, 2, 0);      // its segment of 12 MiB is idle from request 2 on
  add(4 * kMiB, kNever, 0);  // 16 of 20 MiB are free, too small
  add(2 * kMiB, kNever, 1);  // 18 of 20 MiB are free, for another stream
  add(512, kNever, 0);       // 2 MiB - 512 are free, in the other pool
  add(30 * kMiB, kNever, 0);
  const NativePeak peak = find_native_peak(problem);
  REQUIRE(peak.request == 4);
  REQUIRE(peak.segments == 5);
  REQUIRE(peak.held_bytes == (12 + 20 + 20 + 2 + 30) * kMiB);
  REQUIRE(peak.held_bytes == simulate_caching(problem).held_bytes);
  REQUIRE(peak.live_bytes == (4 + 2 + 30) * kMiB + 512);
  REQUIRE(peak.rounding_bytes == 0);
  REQUIRE(peak.holes.size() == 4);
  REQUIRE(peak.holes[0].bytes == 18 * kMiB);
  REQUIRE(peak.holes[0].kind == HoleKind::OtherStream);
  REQUIRE(peak.holes[0].before == 2);
  REQUIRE(peak.holes[0].after == kNoRequest);
  REQUIRE(peak.holes[1].kind == HoleKind::TooSmall);
  REQUIRE(peak.holes[1].bytes == 16 * kMiB);
  REQUIRE(peak.holes[2].kind == HoleKind::WholeSegment);
  REQUIRE(peak.holes[2].bytes == 12 * kMiB);
  REQUIRE(peak.holes[3].kind == HoleKind::OtherPool);
  REQUIRE(find_native_peak(Problem()).request == kNoRequest);

  problem.requests.pop_back();
  add(30 * kMiB + 512, kNever, 0);  // of 32 MiB
  const NativePeak rest = find_native_peak(problem);
  REQUIRE(rest.holes.size() == 5);
  REQUIRE(rest.holes[1].kind == HoleKind::TooSmall);
  REQUIRE(rest.holes[4].bytes == 2 * kMiB - 512);
  REQUIRE(rest.holes[4].kind == HoleKind::Remainder);
  REQUIRE(rest.holes[4].before == 4);
}

TEST_CASE("a watch sees every request and ends at what is held") {
  Problem problem;
  for (std::uint64_t i = 0; i < 50; ++i) {
    Request& request = problem.requests.emplace_back();
    request.id = request.lower = i;
    request.upper = request.until = std::min<std::uint64_t>(i + 1 + i % 7, 50);
    request.size = (i % 11) * kMiB;
  }
  std::vector<std::uint64_t> seen;
  const HeldObserver watch = [&seen](std::size_t request, std::uint64_t held) {
    REQUIRE(request == seen.size());
    seen.push_back(held);
  };
  const auto ends_at = [&](const PeakMemory& held) {
    const bool right = seen.size() == problem.requests.size() && seen.back() == held.held_bytes;
    seen.clear();
    return right;
  };
  REQUIRE(ends_at(simulate_caching(problem, watch)));
  REQUIRE(ends_at(simulate_expandable(problem, watch)));
  REQUIRE(ends_at(simulate_online(problem, 2 * kMiB, watch)));
  const auto planned = plan_device(problem, {.granularity = 2 * kMiB});
  REQUIRE(ends_at(simulate_planned(problem, planned.value.plan, watch)));
}
