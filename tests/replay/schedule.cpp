// SPDX-License-Identifier: Apache-2.0
#include "tests/replay/schedule.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "plan/lifetimes.h"
#include "plan/steps/steady_state.h"

namespace stalloc::replay {
namespace {

using plan::PassReason;
using plan::Problem;
using trace::EventKind;

bool is_allocation(EventKind kind) {
  return kind == EventKind::Alloc || kind == EventKind::AllocAsync || kind == EventKind::AllocFromPool;
}

bool is_free(EventKind kind) { return kind == EventKind::Free || kind == EventKind::FreeAsync; }

bool failed(const trace::Event& event) {
  return (event.flags() & static_cast<std::uint8_t>(tracefb::EventFlags::Failed)) != 0 || event.address() == 0;
}

bool is_repeatable(PassReason pass) {
  return pass != PassReason::Empty && pass != PassReason::Captured && pass != PassReason::Probe;
}

// Requests of the device to replay.
std::size_t limit(const Problem& problem, std::size_t steps) {
  if (steps == 0) return std::numeric_limits<std::size_t>::max();
  const plan::SteadyState steady = plan::find_steady_state(problem);
  if (steps >= steady.repetitions) return std::numeric_limits<std::size_t>::max();
  return steady.begin + steps * steady.period;
}

class Builder {
 public:
  explicit Builder(const trace::Trace& trace) : problems_(plan::find_lifetimes(trace).devices) {}

  std::size_t requests_for(std::size_t steps) const { return problems_.empty() ? 0 : limit(problems_.front(), steps); }

  // False when the first device has had all of its requests.
  bool add(const trace::Event& event, std::size_t most) {
    if (failed(event)) {  // the planner does not number these
      ++schedule_.skipped;
      return true;
    }
    if (is_allocation(event.kind())) return add_allocation(event, most);
    if (is_free(event.kind())) add_free(event);
    return true;
  }

  Schedule take() { return std::move(schedule_); }

 private:
  bool add_allocation(const trace::Event& event, std::size_t most) {
    const Problem& problem = problem_of(event.device());
    const std::size_t ordinal = made_[event.device()]++;
    if (event.device() == problems_.front().device && ordinal >= most) return false;
    const plan::Request& request = problem.requests[ordinal];
    if (!is_repeatable(request.pass)) {
      live_.erase(event.address());
      ++schedule_.skipped;
      return true;
    }
    live_[event.address()] = static_cast<std::uint32_t>(schedule_.tensors.size());
    schedule_.tensors.push_back(
        {event.size(), ordinal, event.device(), event.stream(), event.kind() == EventKind::Alloc});
    add_call(event, static_cast<std::uint32_t>(schedule_.tensors.size() - 1));
    return true;
  }

  void add_free(const trace::Event& event) {
    const auto live = live_.find(event.address());
    if (live == live_.end()) {
      ++schedule_.skipped;
      return;
    }
    add_call(event, live->second);
    live_.erase(live);
  }

  void add_call(const trace::Event& event, std::uint32_t tensor) {
    schedule_.calls.push_back({event.kind(), tensor, event.stream(), event.thread()});
    schedule_.devices = std::max<std::uint32_t>(schedule_.devices, event.device() + 1U);
    schedule_.streams = std::max(schedule_.streams, event.stream() + 1);
    schedule_.threads = std::max(schedule_.threads, event.thread() + 1);
  }

  const Problem& problem_of(std::uint32_t device) const {
    return *std::find_if(problems_.begin(), problems_.end(),
                         [device](const Problem& problem) { return problem.device == device; });
  }

  std::vector<Problem> problems_;
  std::unordered_map<std::uint32_t, std::size_t> made_;  // requests, by device
  std::unordered_map<std::uint64_t, std::uint32_t> live_;
  Schedule schedule_;
};

}  // namespace

Schedule make_schedule(const trace::Trace& trace, std::size_t steps) {
  Builder builder(trace);
  const std::size_t most = builder.requests_for(steps);
  for (const trace::Event& event : trace.events) {
    if (!builder.add(event, most)) break;
  }
  return builder.take();
}

}  // namespace stalloc::replay
