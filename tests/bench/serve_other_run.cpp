// A plan made from one recorded run, served to another one of the same program, without a device: what the heap would
// hold, and how many mapping calls it would make. Prints one line; is no test.
//
//     serve_other_run PLANNED-TRACE SERVED-TRACE [dynamic | whole | no-stacks]
//
// dynamic: no plan; whole: plan the run as one piece; no-stacks: as if no call sites had been recorded.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "interpose/serve/heap.h"
#include "plan/lifetimes.h"
#include "plan/planner.h"
#include "plan/trace_file.h"
#include "tests/unit/fake_driver.h"

using namespace stalloc;

namespace {

constexpr std::size_t kPage = std::size_t{2} << 20;
constexpr std::size_t kWorkDone = 4096;  // requests after which the device has done all its work

plan::Problem read(const char* path, bool stacks) {
  const auto trace = trace::read_trace(path);
  if (!trace.ok()) {
    std::fprintf(stderr, "%s\n", trace.error.c_str());
    return {};
  }
  plan::Lifetimes lifetimes = plan::find_lifetimes(trace.value);
  if (lifetimes.devices.empty()) return {};
  plan::Problem problem = std::move(lifetimes.devices.front());
  for (plan::Request& request : problem.requests) request.stack = stacks ? request.stack : 0;
  return problem;
}

// Plays the requests; returns the peak of live bytes.
std::uint64_t play(const plan::Problem& problem, serve::Heap& heap, test::FakeDriver& driver) {
  std::map<std::uint32_t, serve::StreamKey> streams;
  const auto stream = [&](std::uint32_t ordinal) {
    auto at = streams.find(ordinal);
    if (at == streams.end()) at = streams.emplace(ordinal, serve::StreamKey{driver.new_stream()}).first;
    return at->second;
  };
  std::vector<std::vector<std::size_t>> ends(problem.requests.size() + 1);
  std::vector<CUdeviceptr> addresses(problem.requests.size(), 0);
  std::uint64_t live = 0;
  std::uint64_t peak = 0;
  for (std::size_t i = 0; i < problem.requests.size(); ++i) {
    const plan::Request& request = problem.requests[i];
    for (const std::size_t ended : ends[i]) {
      heap.free_async(addresses[ended], stream(problem.requests[ended].stream));
      live -= problem.requests[ended].bytes();
    }
    if (i % kWorkDone == 0) driver.finish_all_work();
    if (request.bytes() == 0) continue;
    const auto served = heap.allocate(request.size, stream(request.stream), nullptr);
    if (!served) continue;
    addresses[i] = *served;
    live += request.bytes();
    peak = std::max(peak, live);
    if (request.until <= problem.requests.size()) ends[request.until].push_back(i);
  }
  return peak;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    return std::fprintf(stderr, "usage: serve_other_run PLANNED-TRACE SERVED-TRACE [dynamic | whole | no-stacks]\n"), 2;
  }
  const std::string mode = argc > 3 ? argv[3] : "";
  const bool stacks = mode != "no-stacks";
  const auto planned = plan::plan_device(read(argv[1], stacks), {.whole_run = mode == "whole"});
  if (!planned.ok()) return std::fprintf(stderr, "%s\n", planned.error.c_str()), 1;
  const plan::Problem problem = read(argv[2], stacks);

  test::FakeDriver driver(kPage);
  std::string why;
  const plan::DevicePlan* plan = mode == "dynamic" ? nullptr : &planned.value.plan;
  const auto heap = serve::Heap::create(driver, 0, plan, test::FakeDriver::context(), {}, &why,
                                        [](const char* text) { std::printf("%s\n", text); });
  if (heap == nullptr) return std::fprintf(stderr, "%s\n", why.c_str()), 1;
  const std::uint64_t peak = play(problem, *heap, driver);
  const serve::Statistics figures = heap->statistics();
  const auto gib = [](std::uint64_t bytes) { return static_cast<double>(bytes) / (1 << 30); };
  std::printf(
      "peak live %.3f GiB, physical %.3f GiB (%.4f), %llu requests planned, %llu dynamic, %llu slots refused, "
      "mapping calls %llu at the start, %llu after\n",
      gib(peak), gib(figures.physical_peak_bytes), gib(figures.physical_peak_bytes) / gib(peak),
      static_cast<unsigned long long>(figures.planned_requests),
      static_cast<unsigned long long>(figures.dynamic_requests), static_cast<unsigned long long>(figures.refused_slots),
      static_cast<unsigned long long>(figures.mapping_calls_at_start),
      static_cast<unsigned long long>(figures.mapping_calls_after_start));
}
