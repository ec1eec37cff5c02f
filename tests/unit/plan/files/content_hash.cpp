// SPDX-License-Identifier: Apache-2.0
// Which ranks share a plan.
#include "plan/files/content_hash.h"

#include "catch.h"
#include "plan/lifetimes.h"
#include "samples.h"

using namespace stalloc;

TEST_CASE(
    "the same calls at other addresses and times, from threads of other numbers and on another device hash alike") {
  auto trace = test::training_trace(3, 4, 2);
  const auto a = plan::content_hash(plan::find_lifetimes(trace).devices.at(0));
  for (trace::Device& device : trace.devices) device.ordinal = 3;
  for (trace::Event& event : trace.events) {
    const std::uint64_t address = event.address() == 0 ? 0 : event.address() + (std::uint64_t{1} << 40);
    event = trace::Event(event.time_ns() + 7, address, event.size(), event.stream(), event.thread() + 5, event.stack(),
                         event.module_(), 3, event.kind(), event.flags());
  }
  const auto moved = plan::find_lifetimes(trace);
  REQUIRE(moved.devices.at(0).device == 3);
  CHECK(plan::content_hash(moved.devices[0]) == a);
}

TEST_CASE("whatever a plan depends on changes the hash") {
  plan::Problem problem;
  problem.requests.resize(3);
  const auto hash = plan::content_hash(problem);
  const auto differs = [&](auto change) {
    plan::Problem other = problem;
    change(other);
    return plan::content_hash(other) != hash;
  };
  CHECK(differs([](plan::Problem& p) { p.granularity = 512; }));
  CHECK(differs([](plan::Problem& p) { p.repeats = true; }));
  CHECK(differs([](plan::Problem& p) { p.requests.pop_back(); }));
  CHECK(differs([](plan::Problem& p) { p.requests[1].size = 1; }));
  CHECK(differs([](plan::Problem& p) { p.requests[1].until = 2; }));
  CHECK(differs([](plan::Problem& p) { p.requests[1].stream = 2; }));
  CHECK(differs([](plan::Problem& p) { p.requests[1].allocation_stream = plan::kEveryStream; }));
  CHECK(differs([](plan::Problem& p) { p.requests[1].free_stream = 2; }));
  CHECK(differs([](plan::Problem& p) { p.requests[1].pass = plan::PassReason::Exported; }));
  CHECK(differs([](plan::Problem& p) { p.requests[1].stack = 9; }));
  CHECK_FALSE(differs([](plan::Problem& p) { p.device = 1; }));
  CHECK(differs([](plan::Problem& p) { p.requests[1].thread = 1; }));
  CHECK_FALSE(differs([](plan::Problem& p) {  // call sites and threads are told apart, whatever their numbers
    for (plan::Request& request : p.requests) request.stack = request.thread = 9;
  }));
}
