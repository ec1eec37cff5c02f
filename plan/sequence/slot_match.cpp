// SPDX-License-Identifier: Apache-2.0
#include "plan/sequence/slot_match.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace stalloc::plan {
namespace {

using Indices = std::vector<std::size_t>;

struct LaneRequests {
  Indices slots;
  Indices requests;
};

std::vector<LaneRequests> split_lanes(const Problem& problem, const DevicePlan& plan) {
  std::vector<LaneRequests> lanes(1);
  std::unordered_map<std::uint64_t, std::size_t> begins;  // id of a lane's first slot -> lane
  for (std::size_t slot = 0; slot < plan.slots.size(); ++slot) {
    const std::size_t lane = plan.lanes.empty() ? 0 : plan.lanes[slot];
    lanes.resize(std::max(lanes.size(), lane + 1));
    if (lanes[lane].slots.empty()) begins.emplace(plan.slots[slot].id, lane);
    lanes[lane].slots.push_back(slot);
  }
  std::unordered_map<std::uint32_t, std::size_t> lane_of;  // thread -> lane
  for (const Request& request : problem.requests) {
    if (const auto at = begins.find(request.id); at != begins.end()) lane_of.emplace(request.thread, at->second);
  }
  for (std::size_t i = 0; i < problem.requests.size(); ++i) {
    const auto at = lane_of.find(problem.requests[i].thread);
    if (plan.lanes.empty()) {
      lanes[0].requests.push_back(i);
    } else if (at != lane_of.end()) {
      lanes[at->second].requests.push_back(i);
    }
  }
  return lanes;
}

std::string match_lane(const LaneRequests& lane, const DevicePlan& plan, Indices& slot_of) {
  const auto slots_before = [&](std::size_t end) {
    return static_cast<std::size_t>(std::lower_bound(lane.slots.begin(), lane.slots.end(), end) - lane.slots.begin());
  };
  const std::size_t requests = lane.requests.size();
  const std::size_t slots = lane.slots.size();
  const std::size_t prologue = slots_before(plan.prologue);
  const std::size_t body = slots_before(std::size_t{plan.prologue} + plan.body) - prologue;
  const std::size_t epilogue = slots - prologue - body;
  if (body == 0 && requests != slots) {
    return "the plan has " + std::to_string(slots) + " slots for " + std::to_string(requests) + " requests";
  }
  if (body != 0 && (requests < slots || (requests - slots) % body != 0)) {
    return "no number of repetitions makes the plan's slots " + std::to_string(requests) + " requests";
  }
  for (std::size_t i = 0; i < requests; ++i) {
    std::size_t at = i;
    if (body != 0 && i >= prologue) {
      at = i < requests - epilogue ? prologue + (i - prologue) % body : slots - (requests - i);
    }
    slot_of[lane.requests[i]] = lane.slots[at];
  }
  return {};
}

}  // namespace

Expected<Indices> match_slots(const Problem& problem, const DevicePlan& plan) {
  Expected<Indices> result;
  result.value.assign(problem.requests.size(), kNoSlot);
  for (const LaneRequests& lane : split_lanes(problem, plan)) {
    if (std::string error = match_lane(lane, plan, result.value); !error.empty()) {
      return Expected<Indices>::failure(std::move(error));
    }
  }
  return result;
}

}  // namespace stalloc::plan
