// SPDX-License-Identifier: Apache-2.0
#include "plan/lifetimes.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "plan/communication.h"
#include "plan/successive_threads.h"

namespace stalloc::plan {
namespace {

using trace::Event;
using trace::EventKind;

bool is_allocation(EventKind kind) {
  return kind == EventKind::Alloc || kind == EventKind::AllocAsync || kind == EventKind::AllocFromPool;
}

bool has(const Event& event, tracefb::EventFlags flag) { return (event.flags() & static_cast<unsigned>(flag)) != 0; }

class Pairing {
 public:
  explicit Pairing(const trace::Trace& trace) : trace_(trace) {
    for (const trace::Module& module : trace.modules) {
      if (is_communication_library(module.path)) communication_.insert(module.id);
    }
    for (const trace::Device& device : trace.devices) problem_of(device.ordinal).granularity = device.granularity;
  }

  Lifetimes run() {
    for (std::size_t i = 0; i < trace_.events.size(); ++i) add(trace_.events[i], i);
    for (auto& [device, problem] : problems_) {
      const std::uint64_t end = problem.requests.size();
      for (Request& request : problem.requests) request.upper = std::min(request.until, end);
      pass_probes(problem);
      merge_successive_threads(problem);
      if (!problem.requests.empty()) result_.devices.push_back(std::move(problem));
    }
    return std::move(result_);
  }

 private:
  // A live allocation: which request, and which event made it.
  struct Live {
    std::uint32_t device;
    std::size_t request;
    std::size_t event;
  };

  Problem& problem_of(std::uint32_t device) {
    Problem& problem = problems_[device];
    problem.device = device;
    problem.repeats = true;
    return problem;
  }

  Request& request_of(const Live& live) { return problems_[live.device].requests[live.request]; }

  void add(const Event& event, std::size_t index) {
    if (is_allocation(event.kind())) {
      add_allocation(event, index);
    } else if (event.kind() == EventKind::IpcExport) {
      add_export(event);
    } else if (!has(event, tracefb::EventFlags::Failed) && event.address() != 0) {
      add_free(event, index);
    }
  }

  void add_allocation(const Event& event, std::size_t index) {
    if (!makes_request(event)) return;
    end_lost(event.address());
    Problem& problem = problem_of(event.device());
    const std::uint64_t ordinal = problem.requests.size();
    Request& request = problem.requests.emplace_back();
    request.id = request.lower = ordinal;
    request.size = event.size();
    request.stream = event.stream();
    request.allocation_stream = event.kind() == EventKind::Alloc ? kEveryStream : event.stream();
    request.free_stream = request.allocation_stream;
    request.thread = event.thread();
    request.stack = event.stack();
    request.module = event.module_();
    if (event.size() == 0) request.pass = PassReason::Empty;
    if (communication_.contains(event.module_())) request.pass = PassReason::Communication;
    if (has(event, tracefb::EventFlags::Captured)) request.pass = PassReason::Captured;
    live_[event.address()] = {event.device(), static_cast<std::size_t>(ordinal), index};
  }

  // The address is returned again, so the free of its previous allocation was not recorded.
  void end_lost(std::uint64_t address) {
    const auto at = live_.find(address);
    if (at == live_.end()) return;
    ++result_.lost_frees;
    end(at->second, kEveryStream);
    live_.erase(at);
  }

  void add_free(const Event& event, std::size_t index) {
    const auto at = live_.find(event.address());
    if (at == live_.end()) {
      ++result_.unknown_frees;
      return;
    }
    Request& request = request_of(at->second);
    end(at->second, event.kind() == EventKind::Free ? kEveryStream : event.stream());
    if (has(event, tracefb::EventFlags::Captured)) request.pass = PassReason::Captured;
    if (index == at->second.event + 1) freed_at_once_[at->second.device].push_back(at->second.request);
    live_.erase(at);
  }

  void add_export(const Event& event) {
    auto at = live_.upper_bound(event.address());
    if (at == live_.begin()) return;
    --at;
    Request& request = request_of(at->second);
    if (event.address() - at->first < request.size) request.pass = PassReason::Exported;
  }

  void end(const Live& live, std::uint32_t free_stream) {
    Request& request = request_of(live);
    request.until = problems_[live.device].requests.size();
    request.free_stream = free_stream;
  }

  // Frameworks probe for free memory: they ask for all of it, halve the size until it works, and free it at once. A
  // probe is an allocation that the very next event frees, and that is larger than half of the peak of all others and
  // than an eighth of the device.
  void pass_probes(Problem& problem) {
    const std::vector<std::size_t>& candidates = freed_at_once_[problem.device];
    if (candidates.empty()) return;
    std::vector<PassReason> before;
    for (const std::size_t i : candidates) {
      before.push_back(problem.requests[i].pass);
      problem.requests[i].pass = PassReason::Probe;
    }
    const std::uint64_t others = peak_live_bytes(problem);
    const std::uint64_t floor = std::max(others / 2, total_bytes(problem.device) / 8);
    for (std::size_t c = 0; c < candidates.size(); ++c) {
      Request& request = problem.requests[candidates[c]];
      if (request.size <= floor || others == 0 || before[c] != PassReason::None) request.pass = before[c];
    }
  }

  std::uint64_t total_bytes(std::uint32_t ordinal) const {
    for (const trace::Device& device : trace_.devices) {
      if (device.ordinal == ordinal) return device.total_bytes;
    }
    return 0;
  }

  const trace::Trace& trace_;
  Lifetimes result_;
  std::map<std::uint32_t, Problem> problems_;
  std::map<std::uint64_t, Live> live_;  // by address
  std::unordered_set<std::uint32_t> communication_;
  std::unordered_map<std::uint32_t, std::vector<std::size_t>> freed_at_once_;
};

}  // namespace

// A failed request took nothing and may not be made in the next run, so it is left out of the sequence.
bool makes_request(const Event& event) {
  return is_allocation(event.kind()) && !has(event, tracefb::EventFlags::Failed) && event.address() != 0;
}

Lifetimes find_lifetimes(const trace::Trace& trace) { return Pairing(trace).run(); }

}  // namespace stalloc::plan
