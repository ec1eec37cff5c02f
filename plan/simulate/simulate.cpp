// SPDX-License-Identifier: Apache-2.0
#include "plan/simulate/simulate.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <vector>

#include "plan/sequence/slot_match.h"
#include "plan/simulate/simulate_caching.h"
#include "plan/simulate/simulated_heap.h"

namespace stalloc::plan {
namespace {

// Plays the requests: `take(index)` for each that takes bytes, `give(index)` when it is freed, `seen(index)` after each
// request, whether it takes bytes or not. Returns the peak of live bytes.
template <class Take, class Give, class Seen>
std::uint64_t play(const Problem& problem, Take take, Give give, Seen seen) {
  const std::vector<Request>& requests = problem.requests;
  std::vector<std::vector<std::size_t>> frees(requests.size());  // whose bytes are given back before this request
  for (std::size_t i = 0; i < requests.size(); ++i) {
    for (const std::size_t freed : frees[i]) give(freed);
    if (requests[i].bytes() > 0) {
      take(i);
      if (requests[i].until < requests.size()) frees[requests[i].until].push_back(i);
    }
    seen(i);
  }
  return peak_live_bytes(problem);
}

PeakMemory simulate(const Problem& problem, CachingAllocator::Segments segments, const HeldObserver& observer) {
  CachingAllocator allocator(segments);
  std::vector<CachingAllocator::BlockIndex> blocks(problem.requests.size());
  const auto take = [&](std::size_t i) {
    blocks[i] = allocator.allocate(problem.requests[i].size, problem.requests[i].stream);
  };
  const auto give = [&](std::size_t i) { allocator.free(blocks[i]); };
  const auto seen = [&](std::size_t i) {
    if (observer) observer(i, allocator.held_bytes());
  };
  const std::uint64_t live = play(problem, take, give, seen);
  return {.live_bytes = live, .held_bytes = allocator.held_bytes(), .block_bytes = allocator.peak_allocated_bytes()};
}

}  // namespace

std::vector<StreamIndex> number_streams(const Problem& problem) {
  std::unordered_map<std::uint32_t, StreamIndex> known;
  std::vector<StreamIndex> streams;
  streams.reserve(problem.requests.size());
  for (const Request& request : problem.requests) {
    const auto next = static_cast<StreamIndex>(known.size() + 1);
    streams.push_back(known.try_emplace(request.stream, next).first->second);
  }
  return streams;
}

Problem framework_requests(Problem problem) {
  const auto takes = [](const Request& request) {
    return request.pass == PassReason::None || request.pass == PassReason::Exported;
  };
  const bool ordered = std::any_of(problem.requests.begin(), problem.requests.end(), [&takes](const Request& request) {
    return takes(request) && request.allocation_stream != kEveryStream;
  });
  for (Request& request : problem.requests) {
    const bool asked = takes(request) && (!ordered || request.allocation_stream != kEveryStream);
    if (asked) request.pass = PassReason::None;
    if (!asked && request.pass == PassReason::None) request.pass = PassReason::Communication;
  }
  return problem;
}

Problem outside_requests(Problem problem) {
  const Problem framework = framework_requests(problem);
  for (std::size_t i = 0; i < problem.requests.size(); ++i) {
    PassReason& pass = problem.requests[i].pass;
    const bool outside = framework.requests[i].bytes() == 0 && pass != PassReason::Probe;
    pass = outside ? PassReason::None : PassReason::Probe;
  }
  return problem;
}

PeakMemory simulate_caching(const Problem& problem, const HeldObserver& observer) {
  return simulate(problem, CachingAllocator::Segments::Fixed, observer);
}

PeakMemory simulate_expandable(const Problem& problem, const HeldObserver& observer) {
  return simulate(problem, CachingAllocator::Segments::Expandable, observer);
}

PeakMemory simulate_online(const Problem& problem, std::uint64_t granularity, const HeldObserver& observer) {
  const std::vector<StreamIndex> stream = number_streams(problem);
  SimulatedHeap heap(simulation_options(granularity, peak_live_bytes(problem)));
  std::vector<std::optional<Place>> places(problem.requests.size());
  std::uint64_t elsewhere = 0;
  const auto take = [&](std::size_t i) {
    const std::uint64_t bytes = problem.requests[i].bytes();
    places[i] = heap.allocate(i, bytes, stream[i]);
    if (!places[i]) elsewhere += bytes;
  };
  const auto give = [&](std::size_t i) {
    if (places[i]) heap.free(i, *places[i], problem.requests[i].bytes(), stream[i]);
  };
  const auto held = [&] { return heap.allocator().placement().physical_bytes() + elsewhere; };
  const auto seen = [&](std::size_t i) {
    if (observer) observer(i, held());
  };
  const std::uint64_t live = play(problem, take, give, seen);
  return {.live_bytes = live, .held_bytes = held(), .block_bytes = live};
}

PeakMemory simulate_planned(const Problem& problem, const DevicePlan& plan, const HeldObserver& observer) {
  const std::vector<std::size_t> slots = match_slots(problem, plan).value;
  Problem left = problem;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] != kNoSlot && plan.slots[slots[i]].kind != SlotKind::PassThrough) {
      left.requests[i].pass = PassReason::Empty;
    }
  }
  HeldObserver watch_left;
  if (observer) watch_left = [&](std::size_t i, std::uint64_t held) { observer(i, plan.physical_bytes + held); };
  const std::uint64_t live = peak_live_bytes(problem);
  const std::uint64_t held = plan.physical_bytes + simulate_online(left, plan.granularity, watch_left).held_bytes;
  // A plan made without late frees may have less than they keep live.
  return {.live_bytes = live, .held_bytes = std::max(held, live), .block_bytes = live};
}

}  // namespace stalloc::plan
