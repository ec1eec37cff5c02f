// SPDX-License-Identifier: Apache-2.0
// The work whose instructions tests/bench/regression.py counts under callgrind, one piece in each run, and the memory
// that each piece holds. Only instructions inside `counted` are counted, and callgrind looks at none before the run is
// read, which would take longer than most pieces. Prints one line of JSON. The program is not itself a test.
//
//     counted_work PIECE RUN [PLAN]
//
// RUN is a recorded trace, or a CSV of requests; PLAN is its plan, which is otherwise made. A PIECE is
//
//     serve: the run's requests, served by a heap with the plan
//     free: the frees of these requests
//     serve-dynamic, free-dynamic: the same without a plan
//     serve-streams, free-streams: the same without a plan, every second request on a second stream
//     serve-ordered: as serve-streams, and the program orders both streams behind each other before every 16th request
//     match: matching each request with a slot of the plan, with one request in 500 left out
//     plan: finding the lifetimes of the recorded events, and planning
//     record, record-stacks: recording the run's requests and frees, without and with call stacks
//     online: simulating what the run would hold without a plan; only the memory is of interest
//     online-beginning: the same for the first 10,000 requests, whose instructions are of interest
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "interpose/record/recorder.h"
#include "interpose/serve/heap/heap.h"
#include "plan/files/csv.h"
#include "plan/files/file_io.h"
#include "plan/files/plan_file.h"
#include "plan/files/trace_file.h"
#include "plan/follow/cursor.h"
#include "plan/lifetimes.h"
#include "plan/planner.h"
#include "plan/simulate/simulate.h"
#include "tests/bench/nothing_driver.h"
#include "tests/folder.h"

#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#else
#define CALLGRIND_START_INSTRUMENTATION  // then nothing is counted
#endif

// callgrind counts from the beginning of this function to its end (--toggle-collect=counted).
extern "C" [[gnu::noinline]] void counted(void (*work)(void*), void* argument) {
  work(argument);
  asm volatile("");  // keeps the call from becoming a jump, which has no end here
}

using namespace stalloc;

namespace {

constexpr std::size_t kBetweenOrders = 16;  // requests
constexpr std::size_t kLeftOut = 500;       // in matching, one request in so many is left out
constexpr std::size_t kBeginning = 10'000;  // requests
const StreamKey kStreams[2] = {bench::make_stream(0), bench::make_stream(1)};

template <class Work>
void count(Work work) {
  counted([](void* argument) { (*static_cast<Work*>(argument))(); }, &work);
}

// The figures of a piece of work. The instructions are divided by `operations`.
struct Result {
  std::uint64_t operations = 0;
  std::uint64_t live = 0;     // peak, bytes; 0: the piece holds nothing
  std::uint64_t held = 0;     // peak, bytes
  std::uint64_t mapping = 0;  // driver calls that map or unmap, while the run is served
};

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "counted_work: %s\n", why.c_str());
  std::exit(1);
}

plan::Problem first_device(const trace::Trace& trace) {
  plan::Lifetimes lifetimes = plan::find_lifetimes(trace);
  if (lifetimes.devices.empty()) give_up("nothing was recorded");
  return std::move(lifetimes.devices.front());
}

// A recorded run: its trace, if there is one, its requests, and the file of its plan, if there is one.
struct Run {
  trace::Trace trace;
  plan::Problem problem;
  const char* plan_path = nullptr;
};

Run read(const char* path, const char* plan_path) {
  auto bytes = plan::read_file(path);
  if (!bytes.ok()) give_up(bytes.error);
  Run run{.trace = {}, .problem = {}, .plan_path = plan_path};
  if (!trace::is_trace(bytes.value)) {
    auto problem = plan::parse_csv({reinterpret_cast<const char*>(bytes.value.data()), bytes.value.size()});
    if (!problem.ok()) give_up(problem.error);
    run.problem = std::move(problem.value);
  } else {
    auto trace = trace::read_trace(path);
    if (!trace.ok()) give_up(trace.error);
    run.trace = std::move(trace.value);
    run.problem = first_device(run.trace);
  }
  return run;
}

plan::PlannedDevice plan_of(const plan::Problem& problem) {
  auto planned = plan::plan_device(problem, {});
  if (!planned.ok()) give_up(planned.error);
  return std::move(planned.value);
}

plan::DevicePlan plan_of(const Run& run) {
  if (run.plan_path == nullptr) return plan_of(run.problem).plan;
  auto plan = plan::read_plan(run.plan_path);
  if (!plan.ok()) give_up(plan.error);
  if (plan.value.devices.empty()) give_up("the plan has no device");
  return std::move(plan.value.devices.front());
}

// Calls `make(i)` for each request that takes bytes and `end(i)` for each free, in their order.
template <class Make, class End>
void play(const plan::Problem& problem, Make make, End end) {
  const std::size_t requests = problem.requests.size();
  std::vector<std::vector<std::size_t>> ends(requests + 1);
  for (std::size_t i = 0; i < requests; ++i) {
    for (const std::size_t ended : ends[i]) end(ended);
    const plan::Request& request = problem.requests[i];
    if (request.bytes() == 0) continue;
    make(i);
    if (request.until <= requests) ends[request.until].push_back(i);
  }
}

struct Serving {
  bool planned = false;
  bool two_streams = false;
  bool program_orders = false;
  bool count_frees = false;
};

// What a program does by an event of each stream that the other one waits for.
void order_behind_each_other(serve::Heap* heap) {
  const std::uint64_t number = heap->clocks().latest_number();
  serve::StreamClock* clocks[2] = {heap->clock(kStreams[0]), heap->clock(kStreams[1])};
  if (clocks[0] == nullptr || clocks[1] == nullptr) give_up("a stream has no clock");
  for (std::size_t i = 0; i < 2; ++i) clocks[i]->raise(2 - i, number);  // a heap's streams are 1 and 2
}

Result serve_run(const Run& run, const Serving& how) {
  const plan::Problem& problem = run.problem;
  bench::NothingDriver driver;
  plan::DevicePlan plan;
  if (how.planned) plan = plan_of(run);
  std::string why;
  serve::HeapOptions options;
  // Planning the step of a short run would be most of the work, though it is done once. "plan" counts it.
  options.policy.planned_repetitions = plan::kNeverRepeated;
  const auto heap = serve::Heap::create(driver, 0, how.planned ? &plan : nullptr, nullptr, options, &why);
  if (!heap) give_up(why);
  Result result;
  std::vector<CUdeviceptr> addresses(problem.requests.size());
  std::uint64_t live = 0;
  const auto stream = [&](std::size_t i) { return kStreams[how.two_streams ? i % 2 : 0]; };
  const auto count_if = [&result](bool counts, auto work) {
    if (!counts) return work();
    ++result.operations;
    count(work);
  };
  play(
      problem,
      [&](std::size_t i) {
        const plan::Request& request = problem.requests[i];
        if (how.program_orders && i % kBetweenOrders == 0) order_behind_each_other(heap.get());
        count_if(!how.count_frees,
                 [&] { addresses[i] = heap->allocate(request.size, stream(i), nullptr).value_or(0); });
        if (addresses[i] == 0) give_up("a request was not served");
        live += request.bytes();
        result.live = std::max(result.live, live);
      },
      [&](std::size_t i) {
        count_if(how.count_frees, [&] { (void)heap->free_async(addresses[i], stream(i)); });
        live -= problem.requests[i].bytes();
      });
  const serve::Statistics statistics = heap->statistics();
  result.held = statistics.physical_peak;
  result.mapping = statistics.mapping_calls_after_start;
  return result;
}

Result match(const Run& run) {
  const plan::Problem& problem = run.problem;
  const plan::DevicePlan plan = plan_of(run);
  plan::Cursor cursor(plan);
  Result result;
  count([&] {
    for (std::size_t i = 0; i < problem.requests.size(); ++i) {
      if (i % kLeftOut == kLeftOut - 1 || problem.requests[i].size == 0) continue;
      (void)cursor.next(problem.requests[i].size);
      ++result.operations;
    }
  });
  return result;
}

Result make_plan(const Run& run) {
  plan::Problem problem;
  plan::PlannedDevice planned;
  count([&] {
    problem = run.trace.events.empty() ? run.problem : first_device(run.trace);
    planned = plan_of(problem);
  });
  return {problem.requests.size(), plan::peak_live_bytes(problem), planned.plan.physical_bytes, 0};
}

Result record_run(const plan::Problem& problem, bool stacks) {
  const test::Folder folder;
  const std::string path = folder / "trace.fb";
  Options options = parse_options([](const char*) -> const char* { return nullptr; });
  options.trace = path;
  options.stacks = stacks;
  options.trace_flush_ms = 1'000'000'000;  // chunks end when they are full, however long that takes
  record::Recorder recorder(options, [](int device) {
    return trace::Device{static_cast<std::uint32_t>(device), "none", bench::NothingDriver::kDeviceBytes,
                         bench::NothingDriver::kPage};
  });
  Result result;
  const auto record = [&](std::size_t i, trace::EventKind kind) {
    record::TracedCall call;
    call.kind = kind;
    call.address = (i + 1) << 20;
    call.size = problem.requests[i].size;
    call.stream = kStreams[0];
    call.caller = reinterpret_cast<const void*>(&counted);
    ++result.operations;
    count([&] { recorder.record(call); });
  };
  play(
      problem, [&](std::size_t i) { record(i, trace::EventKind::AllocAsync); },
      [&](std::size_t i) { record(i, trace::EventKind::FreeAsync); });
  recorder.close();
  return result;
}

Result simulate(const plan::Problem& problem) {
  Result result;
  count([&] {
    const plan::PeakMemory held = plan::simulate_online(problem, bench::NothingDriver::kPage);
    result = {problem.requests.size(), held.live_bytes, held.held_bytes, 0};
  });
  return result;
}

plan::Problem beginning_of(plan::Problem problem) {
  problem.requests.resize(std::min(problem.requests.size(), kBeginning));
  return problem;
}

Result work(std::string_view piece, const Run& run) {
  if (piece == "serve") return serve_run(run, {.planned = true});
  if (piece == "free") return serve_run(run, {.planned = true, .count_frees = true});
  if (piece == "serve-dynamic") return serve_run(run, {});
  if (piece == "free-dynamic") return serve_run(run, {.count_frees = true});
  if (piece == "serve-streams") return serve_run(run, {.two_streams = true});
  if (piece == "serve-ordered") return serve_run(run, {.two_streams = true, .program_orders = true});
  if (piece == "free-streams") return serve_run(run, {.two_streams = true, .count_frees = true});
  if (piece == "match") return match(run);
  if (piece == "plan") return make_plan(run);
  if (piece == "record") return record_run(run.problem, false);
  if (piece == "record-stacks") return record_run(run.problem, true);
  if (piece == "online") return simulate(run.problem);
  if (piece == "online-beginning") return simulate(beginning_of(run.problem));
  give_up("no such piece: " + std::string(piece));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) return std::fprintf(stderr, "usage: counted_work PIECE RUN [PLAN]\n"), 2;
  const Run run = read(argv[2], argc == 4 ? argv[3] : nullptr);
  CALLGRIND_START_INSTRUMENTATION;
  const Result result = work(argv[1], run);
  std::printf("{\"operations\": %llu, \"live\": %llu, \"held\": %llu, \"mapping\": %llu}\n",
              static_cast<unsigned long long>(result.operations), static_cast<unsigned long long>(result.live),
              static_cast<unsigned long long>(result.held), static_cast<unsigned long long>(result.mapping));
}
