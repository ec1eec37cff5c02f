// SPDX-License-Identifier: Apache-2.0
// Serves one recorded run by a plan made from another run of the same program, without a device: what the heap would
// hold, and how many mapping calls it would make. Prints one line, and is not a test.
//
//     serve_other_run PLANNED SERVED [dynamic | whole | no-stacks] [drop=N] [late=N]
//                     [recorded-late=N] [longest] [every=N] [handle=MIB]
//
// Both are traces, or CSVs of requests. dynamic: no plan; whole: plan the run as one piece; no-stacks: as if no call
// sites had been recorded. drop: the served run leaves out one request in N, chosen at random. late: in the first tenth
// of the served run, the free of one large block in N comes up to 1,000 requests later, as that of a message that is
// still being sent; recorded-late: so it does in the whole of the planned run. longest: no such free counts as usual
// (plan/steps/late_frees.h). every: print a line for each N requests too. handle: the size of the plan's largest
// handles. Where the plan has lanes, the requests come from threads as recorded.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "interpose/serve/heap/heap.h"
#include "plan/planner.h"
#include "plan/steps/late_frees.h"
#include "tests/bench/problems.h"
#include "tests/replay/turns.h"
#include "tests/unit/serve/fake_driver.h"

using namespace stalloc;

namespace {

constexpr std::size_t kPage = std::size_t{2} << 20;
constexpr std::uint64_t kLargeBytes = std::uint64_t{4} << 20;
constexpr std::size_t kLatest = 1000;    // requests
constexpr std::size_t kWorkDone = 4096;  // after so many requests the device has done all its work

// A CSV's requests as a trace has them: of a run whose steps may repeat; what lives to the end is never freed.
plan::Problem as_recorded(plan::Problem problem) {
  problem.repeats = true;
  for (std::size_t i = 0; i < problem.requests.size(); ++i) {
    plan::Request& request = problem.requests[i];
    if (request.until >= problem.requests.size()) request.until = plan::kNever;
    request.lower = i;
    request.upper = request.until;
  }
  return problem;
}

// The first device's run. Ends the program if there is none.
plan::Problem read_run(const char* path) {
  std::vector<plan::Problem> problems = bench::read_problems(path);
  if (problems.empty()) {
    std::fprintf(stderr, "%s: no requests\n", path);
    std::exit(1);
  }
  return problems.front().repeats ? std::move(problems.front()) : as_recorded(std::move(problems.front()));
}

plan::Problem read(const char* path, bool stacks) {
  plan::Problem problem = read_run(path);
  for (plan::Request& request : problem.requests) request.stack = stacks ? request.stack : 0;
  return problem;
}

// Lets the frees of one large block in `one_in` come later, among the first `count` requests. 0: of none.
void delay_frees(plan::Problem& problem, std::uint64_t one_in, std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const std::uint64_t all = problem.requests.size();
  for (std::size_t i = 0; one_in != 0 && i < count; ++i) {
    plan::Request& request = problem.requests[i];
    if (request.until >= all || request.bytes() < kLargeBytes || random() % one_in != 0) continue;
    request.until = std::min(all - 1, request.until + 1 + random() % kLatest);
    request.upper = request.until;
  }
}

class Player {
 public:
  Player(const plan::Problem& problem, serve::Heap& heap, test::FakeDriver& driver, std::uint64_t drop,
         std::uint64_t every)
      : problem_(problem),
        heap_(heap),
        driver_(driver),
        drop_(drop),
        every_(every),
        ends_(problem.requests.size() + 1),
        addresses_(problem.requests.size(), 0) {}

  // Plays the run. Returns the peak of live bytes.
  std::uint64_t play(bool from_threads) {
    std::vector<std::uint32_t> threads;
    std::uint32_t count = 1;
    for (const plan::Request& request : problem_.requests) {
      threads.push_back(from_threads ? request.thread : 0);
      count = std::max(count, threads.back() + 1);
    }
    replay::take_turns(threads, count, [this](std::size_t i) { return make(i), true; });
    return peak_;
  }

 private:
  StreamKey stream(std::uint32_t ordinal) {
    auto at = streams_.find(ordinal);
    if (at == streams_.end()) at = streams_.emplace(ordinal, StreamKey{driver_.new_stream()}).first;
    return at->second;
  }

  // Prints what happened since the last line.
  void show(std::size_t i) {
    const serve::Statistics now = heap_.statistics();
    const auto since = [&](std::uint64_t serve::Statistics::*figure) {
      return static_cast<unsigned long long>(now.*figure - shown_.*figure);
    };
    constexpr double kGib = 1 << 30;
    std::printf(
        "%8zu: live %.3f, of the plan %.3f, physical %.3f GiB; %llu planned, %llu dynamic, %llu refused, "
        "%llu resynchronizations, %llu grown, %llu mapping calls\n",
        i, static_cast<double>(live_) / kGib, static_cast<double>(now.planned_live) / kGib,
        static_cast<double>(now.physical) / kGib, since(&serve::Statistics::planned_requests),
        since(&serve::Statistics::dynamic_requests), since(&serve::Statistics::refused_slots),
        since(&serve::Statistics::resynchronizations), since(&serve::Statistics::grows),
        since(&serve::Statistics::mapping_calls_after_start));
    shown_ = now;
  }

  void make(std::size_t i) {
    const plan::Request& request = problem_.requests[i];
    for (const std::size_t ended : ends_[i]) {
      const plan::Request& freed = problem_.requests[ended];
      if (freed.free_stream == plan::kEveryStream) {
        heap_.free_sync(addresses_[ended]);
      } else {
        heap_.free_async(addresses_[ended], stream(freed.free_stream));
      }
      live_ -= problem_.requests[ended].bytes();
    }
    if (i % kWorkDone == 0) driver_.finish_all_work();
    if (every_ != 0 && i % every_ == 0) show(i);
    if (request.bytes() == 0 || (drop_ != 0 && random_() % drop_ == 0)) return;
    const auto served = request.allocation_stream == plan::kEveryStream
                            ? heap_.allocate_sync(request.size)
                            : heap_.allocate(request.size, stream(request.stream), nullptr);
    if (!served) return;
    addresses_[i] = *served;
    live_ += request.bytes();
    peak_ = std::max(peak_, live_);
    if (request.until <= problem_.requests.size()) ends_[request.until].push_back(i);
  }

  const plan::Problem& problem_;
  serve::Heap& heap_;
  test::FakeDriver& driver_;
  const std::uint64_t drop_;
  const std::uint64_t every_;
  serve::Statistics shown_;
  std::mt19937_64 random_{1};
  std::map<std::uint32_t, StreamKey> streams_;
  std::vector<std::vector<std::size_t>> ends_;
  std::vector<CUdeviceptr> addresses_;
  std::uint64_t live_ = 0;
  std::uint64_t peak_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    return std::fprintf(stderr,
                        "usage: serve_other_run PLANNED SERVED [dynamic | whole | no-stacks] [drop=N] [late=N] "
                        "[recorded-late=N] [longest] [every=N] [handle=MIB]\n"),
           2;
  }
  std::string mode;
  bool longest = false;
  std::map<std::string, std::uint64_t> numbers;
  for (int i = 3; i < argc; ++i) {
    const std::string_view option = argv[i];
    const std::size_t equals = option.find('=');
    if (equals != option.npos) {
      numbers[std::string(option.substr(0, equals))] = std::strtoull(argv[i] + equals + 1, nullptr, 10);
    } else if (option == "longest") {
      longest = true;
    } else {
      mode = option;
    }
  }
  const bool stacks = mode != "no-stacks";
  plan::Problem recorded = read(argv[1], stacks);
  delay_frees(recorded, numbers["recorded-late"], recorded.requests.size(), 1);
  if (!longest) recorded = plan::without_late_frees(std::move(recorded)).problem;
  const auto planned =
      plan::plan_device(recorded, {.handle_cap = numbers["handle"] << 20, .whole_run = mode == "whole"});
  if (!planned.ok()) return std::fprintf(stderr, "%s\n", planned.error.c_str()), 1;
  plan::Problem problem = read(argv[2], stacks);
  delay_frees(problem, numbers["late"], problem.requests.size() / 10, 2);

  test::FakeDriver driver(kPage, std::uint64_t{1} << 40);  // more than any run has live
  std::string why;
  const plan::DevicePlan* plan = mode == "dynamic" ? nullptr : &planned.value.plan;
  const auto heap = serve::Heap::create(driver, 0, plan, test::FakeDriver::context(), {}, &why,
                                        [](serve::LogKind /*kind*/, const char* text) { std::printf("%s\n", text); });
  if (heap == nullptr) return std::fprintf(stderr, "%s\n", why.c_str()), 1;
  const std::uint64_t peak =
      Player(problem, *heap, driver, numbers["drop"], numbers["every"]).play(plan != nullptr && !plan->lanes.empty());
  const serve::Statistics figures = heap->statistics();
  const auto gib = [](std::uint64_t bytes) { return static_cast<double>(bytes) / (1 << 30); };
  std::printf(
      "peak live %.3f GiB, physical %.3f GiB (%.4f), %llu requests planned, %llu dynamic, %llu slots refused, "
      "%llu resynchronizations, mapping calls %llu at the start, %llu after\n",
      gib(peak), gib(figures.physical_peak), gib(figures.physical_peak) / gib(peak),
      static_cast<unsigned long long>(figures.planned_requests),
      static_cast<unsigned long long>(figures.dynamic_requests), static_cast<unsigned long long>(figures.refused_slots),
      static_cast<unsigned long long>(figures.resynchronizations),
      static_cast<unsigned long long>(figures.mapping_calls_at_start),
      static_cast<unsigned long long>(figures.mapping_calls_after_start));
}
