// SPDX-License-Identifier: Apache-2.0
// Runs that are planned and then served by their own plan: each request finds its slot.
#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "catch.h"
#include "fake_driver.h"
#include "heaps.h"
#include "interpose/serve/heap/heap.h"
#include "plan/planner.h"
#include "tests/unit/seeds.h"

using namespace stalloc;
using namespace stalloc::test;
using plan::Problem;
using plan::Request;

namespace {

// What a run is made of.
struct Shape {
  std::size_t period = 0;  // requests of a step
  std::size_t steps = 0;
  std::size_t behind = 0;  // requests after the last step
  std::uint64_t most_units = 0;
  std::uint32_t streams = 1;
};

// Steps whose requests live into the next one, and other requests behind them.
Problem make_run(const Shape& shape, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto make_request = [&](std::size_t longest) {
    Request request;
    request.size = (1 + random() % shape.most_units) * plan::kUnitBytes;
    request.stream = request.allocation_stream = request.free_stream = random() % shape.streams;
    request.until = 1 + random() % longest;
    return request;
  };
  std::vector<Request> step;
  for (std::size_t i = 0; i < shape.period; ++i) step.push_back(make_request(shape.period));
  Problem problem;
  problem.repeats = true;
  const std::size_t in_steps = shape.period * shape.steps;
  for (std::size_t i = 0; i < in_steps + shape.behind; ++i) {
    Request request = i < in_steps ? step[i % shape.period] : make_request(shape.behind);
    request.id = request.lower = i;
    request.until = i + request.until < in_steps + shape.behind ? i + request.until : plan::kNever;
    request.upper = request.until;
    problem.requests.push_back(request);
  }
  return problem;
}

// Serves the run by its plan alone. Returns the number of requests that were not served.
std::size_t count_refused(const Problem& problem) {
  const auto planned = plan::plan_device(problem, {.granularity = kPage});
  REQUIRE(planned.ok());
  REQUIRE(planned.value.plan.body > 0);
  FakeDriver driver(kPage, std::uint64_t{1} << 34);
  std::vector<StreamKey> streams;
  for (const Request& request : problem.requests) {
    while (streams.size() <= request.stream) streams.push_back({driver.new_stream(), 0});
  }
  std::string why;
  const auto heap = plan_only_heap(driver, planned.value.plan, &why);
  REQUIRE(heap != nullptr);
  const std::size_t count = problem.requests.size();
  std::vector<std::vector<std::size_t>> ends(count);  // the requests freed before each one
  std::vector<CUdeviceptr> addresses(count);
  std::size_t refused = 0;
  for (std::size_t i = 0; i < count; ++i) {
    for (const std::size_t freed : ends[i]) {
      REQUIRE(heap->free_async(addresses[freed], streams[problem.requests[freed].stream]) == CUDA_SUCCESS);
    }
    const Request& request = problem.requests[i];
    const auto served = heap->allocate(request.size, streams[request.stream], nullptr);
    if (!served) {
      ++refused;
      continue;
    }
    addresses[i] = *served;
    if (request.until < count) ends[request.until].push_back(i);
  }
  return refused;
}

}  // namespace

TEST_CASE("what a run requests behind its last step is served at its slots", "[serve][heap]") {
  for (const std::uint64_t seed : seeds(20)) {
    CAPTURE(seed);
    const auto streams = static_cast<std::uint32_t>(1 + seed % 3);
    CHECK(count_refused(make_run({60, 5, 30, 200, streams}, seed)) == 0);
    CHECK(count_refused(make_run({60, 5, 30, 20'000, streams}, seed)) == 0);
  }
}
