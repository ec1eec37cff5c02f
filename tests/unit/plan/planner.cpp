// SPDX-License-Identifier: Apache-2.0
// Whole plans: sound by the checker, near the bound, complete.
#include "plan/planner.h"

#include <algorithm>
#include <random>

#include "catch.h"
#include "child.h"
#include "plan/checker.h"
#include "plan/files/csv.h"
#include "plan/files/plan_file.h"
#include "plan/layout/packed.h"
#include "plan/layout/sweep.h"
#include "plan/lifetimes.h"
#include "plan/steps/steady_state.h"
#include "plan_and_check.h"
#include "samples.h"
#include "tests/unit/seeds.h"

using namespace stalloc;
using namespace stalloc::plan;
using stalloc::test::plan_and_check;

namespace {

// Requests with random sizes and lifetimes; `streams` > 1 mixes them, `synchronous` adds cudaMalloc and cudaFree.
Problem random_problem(std::uint32_t seed, std::size_t count, std::uint32_t streams, bool synchronous) {
  std::mt19937 random(seed);
  Problem problem;
  for (std::size_t i = 0; i < count; ++i) {
    Request& request = problem.requests.emplace_back();
    request.id = request.lower = i;
    request.size = random() % 4 == 0 ? random() % 5000 : random() % 300'000;
    const std::uint64_t life = 1 + random() % (random() % 8 == 0 ? count : 12);
    request.until = i + life < count ? i + life : kNever;
    request.upper = std::min<std::uint64_t>(request.until, count);
    request.stream = request.allocation_stream = request.free_stream = random() % streams;
    if (random() % 6 == 0) request.free_stream = random() % streams;
    if (synchronous && random() % 4 == 0) request.allocation_stream = kEveryStream;
    if (synchronous && random() % 4 == 0) request.free_stream = kEveryStream;
    if (random() % 50 == 0) request.pass = PassReason::Exported;
  }
  return problem;
}

// A body of random requests repeated, some living into the next step or two, with other requests before and behind.
Problem random_loop(std::uint32_t seed, std::uint32_t streams) {
  std::mt19937 random(seed);
  const std::size_t before = random() % 40;
  const std::size_t period = 5 + random() % 60;
  const std::size_t steps = 2 + random() % 5;
  const std::size_t behind = random() % 40;
  const std::size_t count = before + period * steps + behind;
  std::vector<Request> body;
  for (std::size_t i = 0; i < period; ++i) {
    Request& request = body.emplace_back();
    request.size = 1 + random() % 200'000;
    request.stream = request.allocation_stream = request.free_stream = random() % streams;
    if (random() % 8 == 0) request.free_stream = random() % streams;
    request.until = 1 + random() % (random() % 6 == 0 ? period + random() % 2 * period : period / 2 + 1);
  }
  Problem problem;
  problem.repeats = true;
  for (std::size_t i = 0; i < count; ++i) {
    Request request;
    if (i >= before && i < before + period * steps) {
      request = body[(i - before) % period];
      if (random() % 5 == 0 && request.until > 1) --request.until;  // lives vary a little
      request.until += i;
    } else {
      request.size = 1 + random() % 200'000;
      request.until = i + 1 + random() % count;
      request.stream = request.allocation_stream = request.free_stream = random() % streams;
    }
    request.id = request.lower = i;
    if (request.until >= count) request.until = random() % 2 == 0 ? count : kNever;
    request.upper = std::min<std::uint64_t>(request.until, count);
    problem.requests.push_back(request);
  }
  return problem;
}

constexpr std::uint64_t kSmallPage = 64 * 1024;

std::vector<Range> bytes_of(const Layout& layout, const Sequence& sequence, std::size_t slot) {
  const auto [view, offset] = layout.places[slot];
  const std::uint64_t bytes = sequence.slots[slot].bytes;
  std::vector<Range> ranges;
  if (view == 0) {
    ranges.push_back({offset, offset + bytes});
  } else {
    layout.stitched[view - 1].translate(offset, bytes, ranges);
  }
  return ranges;
}

// Two slots that live at the same time and share a byte; nothing where there are none.
std::optional<std::pair<std::size_t, std::size_t>> find_clash(const Layout& layout, const Sequence& sequence) {
  const auto meet = [](const auto& some, const auto& others) {
    return std::any_of(some.begin(), some.end(), [&others](const Range& a) {
      return std::any_of(others.begin(), others.end(),
                         [&a](const Range& b) { return std::max(a.begin, b.begin) < std::min(a.end, b.end); });
    });
  };
  for (std::size_t a = 0; a < sequence.slots.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      if (sequence.slots[a].bytes == 0 || sequence.slots[b].bytes == 0) continue;
      if (!meet(lives_of(sequence, a), lives_of(sequence, b))) continue;
      if (meet(bytes_of(layout, sequence, a), bytes_of(layout, sequence, b))) return std::pair(a, b);
    }
  }
  return std::nullopt;
}

}  // namespace

TEST_CASE("a problem without requests has a plan without memory") {
  const auto planned = plan_and_check({});
  CHECK(planned.plan.physical_bytes == 0);
  CHECK(planned.plan.slots.empty());
}

TEST_CASE("a CSV keeps ids, times and sizes for every row, those of no bytes too") {
  const auto parsed = parse_csv("id,lower,upper,size\n40,10,30,5000000\n41,12,13,0\n42,11,20,1\n");
  REQUIRE(parsed.error.empty());
  const auto planned = plan_and_check(parsed.value);
  const auto& slots = planned.plan.slots;
  REQUIRE(slots.size() == 3);
  CHECK(slots[0].id == 40);
  CHECK(slots[0].lower == 10);
  CHECK(slots[0].upper == 30);
  CHECK(slots[0].size == 5000000);
  CHECK(slots[1].id == 42);
  CHECK(slots[2].id == 41);
  CHECK(slots[2].size == 0);
  CHECK(slots[2].kind == SlotKind::Static);
  CHECK(planned.plan.body == 0);
}

TEST_CASE("fragments that no contiguous request fits into are stitched: the bound is reached") {
  // 1 page each, every second one freed, then one as large as all the holes.
  constexpr std::size_t kPages = 64;
  Problem problem;
  for (std::size_t i = 0; i <= kPages; ++i) {
    Request& request = problem.requests.emplace_back();
    request.id = request.lower = i;
    request.size = i < kPages ? kDefaultGranularity : kPages / 2 * kDefaultGranularity;
    request.until = i % 2 == 0 && i < kPages ? kPages : kNever;
    request.upper = std::min<std::uint64_t>(request.until, kPages + 1);
  }
  const auto planned = plan_and_check(problem);
  CHECK(planned.plan.physical_bytes == kPages * kDefaultGranularity);
}

TEST_CASE("random problems are planned soundly and near the bound") {
  for (const std::uint64_t seed : seeds(60)) {
    const Problem problem = random_problem(seed, 50 + seed * 5, 1, false);
    const auto planned = plan_and_check(problem, {.granularity = seed % 2 == 0 ? kSmallPage : 4096});
    CHECK(static_cast<double>(planned.plan.physical_bytes) <=
          1.05 * static_cast<double>(planned.plan.peak_live_bytes) + 4 * kSmallPage);
  }
}

TEST_CASE("random problems on several streams are planned soundly, ordered or isolated") {
  for (const std::uint64_t seed : seeds(60)) {
    const Problem problem = random_problem(1000 + seed, 200, 1 + seed % 4, seed % 2 == 0);
    for (const StreamMode mode : {StreamMode::Order, StreamMode::Isolate}) {
      plan_and_check(problem, {.granularity = kSmallPage, .handle_cap = 4 * kSmallPage, .streams = mode});
    }
  }
}

TEST_CASE("random loops are planned soundly, however their requests cross the step") {
  std::size_t bodies = 0;
  for (const std::uint64_t seed : seeds(300)) {
    const Problem problem = random_loop(seed, 1 + seed % 3);
    for (const StreamMode mode : {StreamMode::Order, StreamMode::Isolate}) {
      const auto planned = plan_and_check(problem, {.granularity = kSmallPage, .streams = mode});
      bodies += planned.plan.body != 0 ? 1 : 0;
    }
  }
  CHECK(bodies > 300);
}

TEST_CASE("what lives shortly keeps away from what is packed ahead of it") {
  constexpr std::uint64_t kRoom = 4096 * kSmallPage;
  std::size_t swept = 0;
  for (const std::uint64_t seed : seeds(100)) {
    const Problem problem = random_loop(seed, 1);
    const Sequence sequence = make_sequence(problem, find_steady_state(problem), StreamMode::Order);
    const LayoutOptions options{.granularity = kSmallPage};
    for (const PackFirst first : {PackFirst::Longest, PackFirst::Last, PackFirst::Largest}) {
      auto packed = pack_long_lived(sequence, {0, kRoom}, kSmallPage, first);
      if (!packed) continue;
      const SweepHints hints{std::vector<Fit>(sequence.slots.size(), Fit::Lowest), 0, std::move(packed)};
      const auto layout = Sweep(sequence, options, hints).run(4096, true);
      if (!layout) continue;
      ++swept;
      CHECK_FALSE(find_clash(*layout, sequence));
      for (std::size_t slot = 0; slot < sequence.slots.size(); ++slot) {
        const std::uint64_t offset = hints.packed->offsets[slot];
        if (offset == kNotPacked) continue;
        CHECK(layout->places[slot].view == 0);
        CHECK(layout->places[slot].offset == offset);
      }
    }
  }
  CHECK(swept > 250);
}

TEST_CASE("nothing is packed ahead where it does not fit, or on several streams") {
  const auto pack = [](std::uint32_t streams, std::uint64_t room) {
    const Problem problem = random_problem(1, 200, streams, false);
    const Sequence sequence = make_sequence(problem, {}, StreamMode::Order);
    return pack_long_lived(sequence, {0, room}, kSmallPage, PackFirst::Longest).has_value();
  };
  CHECK(pack(1, 4096 * kSmallPage));
  CHECK_FALSE(pack(1, kSmallPage));
  CHECK_FALSE(pack(2, 4096 * kSmallPage));
}

TEST_CASE("a sweep leaves synchronous memory the bytes kept for it") {
  constexpr std::uint64_t kPages = 4;  // of each request
  Sequence sequence;
  for (std::size_t i = 0; i < 4; ++i) {
    SequenceSlot& entry = sequence.slots.emplace_back();
    entry.bytes = kPages * kSmallPage;
    entry.lower = i;
    entry.upper = i == 0 ? 1 : 4;
  }
  sequence.prologue = sequence.slots.size();
  sequence.slots[3].allocation_stream = sequence.slots[3].free_stream = kEveryStream;
  const LayoutOptions options{.granularity = kSmallPage};
  // The first three have been everywhere when the last one comes.
  const std::vector<Fit> fits = {Fit::Highest, Fit::Lowest, Fit::Lowest, Fit::Lowest};
  CHECK_FALSE(Sweep(sequence, options, {fits, 0, {}}).run(3 * kPages, false));
  CHECK(Sweep(sequence, options, {fits, kPages * kSmallPage, {}}).run(3 * kPages, false));
}

TEST_CASE("memory of synchronous calls shares no page with what streams free") {
  for (const std::uint64_t seed : seeds(20)) {
    CAPTURE(seed);
    Problem problem = random_loop(static_cast<std::uint32_t>(seed), 1);
    std::mt19937 random(static_cast<std::uint32_t>(seed));
    const std::size_t every = 3 + random() % 20;
    for (Request& request : problem.requests) {
      // Requests of one size are of one kind, so that the steps still repeat.
      if (request.size % every == 0) request.allocation_stream = request.free_stream = kEveryStream;
    }
    const DevicePlan plan = plan_and_check(problem, {.granularity = kSmallPage, .contiguous = seed % 4 == 0}).plan;
    CHECK(plan.body > 0);
  }
}

TEST_CASE("plans know what cudaFree of stream-ordered memory leaves to be ordered") {
  std::size_t waits = 0;
  for (const std::uint64_t seed : seeds(20)) {
    CAPTURE(seed);
    Problem problem = random_loop(static_cast<std::uint32_t>(seed), 3);
    for (Request& request : problem.requests) {
      if (request.size % 3 == 0) request.free_stream = kEveryStream;
    }
    waits += plan_and_check(problem, {.granularity = kSmallPage}).plan.waits.size();
  }
  CHECK(waits > 0);
}

TEST_CASE("very many small requests of one stream each wait for one of another stream") {
  constexpr std::size_t kCount = 16'384;  // of each stream; the frees of the first one come all at once
  Problem problem;
  for (std::size_t i = 0; i < 2 * kCount; ++i) {
    Request& request = problem.requests.emplace_back();
    request.id = request.lower = i;
    request.size = kUnitBytes;
    request.until = request.upper = i < kCount ? kCount : 2 * kCount;
    request.stream = request.allocation_stream = request.free_stream = i < kCount ? 0 : 1;
  }
  const auto planned = plan_and_check(problem);
  CHECK(planned.plan.waits.size() == kCount);
  CHECK(std::all_of(planned.plan.slots.begin(), planned.plan.slots.begin() + kCount,
                    [](const Slot& slot) { return slot.event_on_free; }));
}

TEST_CASE("a library's workspace takes as many pages as its bytes need") {
  for (const std::uint64_t seed : seeds(10)) {
    Problem problem = random_problem(static_cast<std::uint32_t>(seed), 100, 1, false);
    for (const std::size_t of_library : {10, 20}) {
      Request& request = problem.requests[of_library];
      request.size = 3 * kUnitBytes;
      request.until = kNever;
      request.allocation_stream = request.free_stream = kEveryStream;
      request.pass = PassReason::None;
    }
    const DevicePlan plan = plan_and_check(problem, {.granularity = kSmallPage}).plan;
    CHECK(plan.slots[10].offset < kSmallPage);
    CHECK(plan.slots[20].offset < kSmallPage);
  }
}

TEST_CASE("training loops are planned by the step, near the bound") {
  for (const std::uint64_t seed : seeds(30)) {
    const auto trace = test::training_trace(seed, 4, 1 + static_cast<int>(seed % 4));
    const auto lifetimes = find_lifetimes(trace);
    REQUIRE(lifetimes.devices.size() == 1);
    const auto planned = plan_and_check(lifetimes.devices[0]);
    CHECK(planned.report.repetitions * planned.report.unrolled >= 3);
    CHECK(planned.plan.peak_live_bytes == peak_live_bytes(lifetimes.devices[0]));
    CHECK(planned.plan.slots.size() < lifetimes.devices[0].requests.size());
    CHECK(static_cast<double>(planned.plan.physical_bytes) <=
          1.02 * static_cast<double>(planned.plan.peak_live_bytes) + 4 * kDefaultGranularity);
    const auto kinds = [&planned](SlotKind kind) {
      return std::count_if(planned.plan.slots.begin(), planned.plan.slots.end(),
                           [kind](const Slot& slot) { return slot.kind == kind; });
    };
    CHECK(kinds(SlotKind::Persistent) > 0);  // optimizer states
    CHECK(kinds(SlotKind::PassThrough) == 0);
  }
}

TEST_CASE("planning is deterministic") {
  const auto trace = test::training_trace(5, 3, 2);
  const auto lifetimes = find_lifetimes(trace);
  const auto a = plan_and_check(lifetimes.devices[0]);
  const auto b = plan_and_check(lifetimes.devices[0]);
  CHECK(encode_plan({"", "", 0, {a.plan}}) == encode_plan({"", "", 0, {b.plan}}));
}

TEST_CASE("reuse across streams waits; with isolation there is none") {
  test::TraceBuilder calls;
  for (int i = 0; i < 8; ++i) {
    calls.stream = 1 + static_cast<std::uint32_t>(i % 2);
    calls.free(calls.alloc(100'000'000));
  }
  const auto lifetimes = find_lifetimes(calls.trace());
  const auto ordered = plan_and_check(lifetimes.devices[0]);
  CHECK(ordered.plan.physical_bytes < 110'000'000);
  CHECK_FALSE(ordered.plan.waits.empty());
  const auto isolated = plan_and_check(lifetimes.devices[0], {.streams = StreamMode::Isolate});
  CHECK(isolated.plan.physical_bytes > 190'000'000);
}

TEST_CASE("a request leaked in every step is passed through, not planned over itself") {
  test::TraceBuilder calls;
  for (int step = 0; step < 10; ++step) {
    const auto a = calls.alloc(1'000'000);
    calls.alloc(512);  // kept in a list forever
    const auto b = calls.alloc(3'000'000);
    calls.free(a);
    calls.free(b);
  }
  const auto lifetimes = find_lifetimes(calls.trace());
  const auto planned = plan_and_check(lifetimes.devices[0]);
  CHECK(planned.plan.body == 3);
  CHECK(planned.report.passed[static_cast<std::size_t>(PassReason::Leaked)] >= 1);
  REQUIRE_FALSE(planned.plan.unplaced.empty());
  for (const std::uint32_t slot : planned.plan.unplaced) {
    CHECK(planned.plan.slots[slot].kind == SlotKind::PassThrough);
    CHECK(planned.plan.slots[slot].size == 512);
  }
}

TEST_CASE("a body whose requests outlive the step is unrolled") {
  test::TraceBuilder calls;
  std::vector<test::TraceBuilder::Id> kept;
  for (int step = 0; step < 9; ++step) {
    const auto scratch = calls.alloc(4'000'000);
    kept.push_back(calls.alloc(1'000'000));
    if (kept.size() > 2) {  // each is freed two steps later
      calls.free(kept.front());
      kept.erase(kept.begin());
    }
    calls.free(scratch);
    calls.free(calls.alloc(2'000'000));
  }
  const auto lifetimes = find_lifetimes(calls.trace());
  const auto planned = plan_and_check(lifetimes.devices[0]);
  CHECK(planned.report.unrolled > 1);
  CHECK(planned.plan.body == 3 * planned.report.unrolled);
}

TEST_CASE("values that alternate between two places over an odd number of steps need no third") {
  test::TraceBuilder calls;
  auto values = calls.alloc(50'000'000);
  for (int step = 0; step < 24; ++step) {
    const auto scratch = calls.alloc(static_cast<std::uint64_t>(10'000'000 + 1'000'000 * (step % 3)));
    const auto renewed = calls.alloc(50'000'000);
    calls.free(scratch);
    calls.free(values);
    values = renewed;
  }
  const auto lifetimes = find_lifetimes(calls.trace());
  const auto planned = plan_and_check(lifetimes.devices[0]);
  CHECK(planned.report.unrolled == 2);
  CHECK(planned.plan.body == 12);
  CHECK(static_cast<double>(planned.plan.physical_bytes) <= 1.04 * static_cast<double>(planned.plan.peak_live_bytes));
}

TEST_CASE("options that cannot be used are errors") {
  for (const std::uint64_t granularity :
       {std::uint64_t{256}, std::uint64_t{1000}, std::uint64_t{3} << 20, std::uint64_t{1} << 41, ~std::uint64_t{511}}) {
    const std::string error =
        "the granularity must be a power of two from 512 bytes to 1 TiB, not " + std::to_string(granularity) + " bytes";
    CHECK(plan_device({}, {.granularity = granularity}).error == error);
    Problem recorded;
    recorded.granularity = granularity;
    CHECK(plan_device(recorded, {}).error == error);
  }
  CHECK(plan_device({}, {.granularity = 1 << 20, .handle_cap = 4096}).error ==
        "the largest handle must be at least a page, which has 1048576 bytes");
}

TEST_CASE("very many equal requests may live from step to step") {
  constexpr std::size_t kRequests = 200'000;  // before the body, and in each half of it
  Problem problem;
  problem.repeats = true;
  problem.requests.resize(5 * kRequests);
  SteadyState steady;
  steady.begin = steady.run_begin = kRequests;
  steady.period = 2 * kRequests;
  steady.repetitions = 2;
  steady.run_end = steady.end();
  for (std::size_t i = 0; i < problem.requests.size(); ++i) {
    Request& request = problem.requests[i];
    const bool lasts = i < kRequests || (i - kRequests) % steady.period < kRequests;
    request.id = request.lower = i;
    request.size = lasts ? 512 : 1024;
    request.until = i < kRequests ? 3 * kRequests - 1 : i + (lasts ? steady.period : 1);
    if (i >= steady.begin && i < steady.begin + steady.period) steady.lives.push_back(request.until - i);
    if (request.until > problem.requests.size()) request.until = kNever;
  }
  // A child may take a minute. To look at each request of the prologue for each that lasts takes several.
  CHECK(test::holds_in_child([&] {
    const Sequence sequence = make_sequence(problem, steady, StreamMode::Order);
    return sequence.slots.size() == 3 * kRequests && sequence.slots[kRequests + 1].twin == kNone;
  }));
}

TEST_CASE("a request beyond any device is an error, whoever serves it") {
  for (std::size_t reason = 0; reason < kPassReasons; ++reason) {
    Problem problem;
    Request& request = problem.requests.emplace_back();
    request.upper = 1;
    request.size = ~std::uint64_t{0};
    request.pass = static_cast<PassReason>(reason);
    CHECK(plan_device(problem, {}).error == kFitsNoDevice);
    CHECK_FALSE(fits_a_device(problem));
  }
}

TEST_CASE("requests beyond any device are an error, not a long wait") {
  Problem problem;
  for (std::uint64_t i = 0; i < 3; ++i) {
    Request& request = problem.requests.emplace_back();
    request.id = request.lower = i;
    request.size = kMostBytes / 2;
    request.upper = 3;
  }
  CHECK(plan_device(problem, {}).error == "the requests need more memory than any device has");
  problem.requests[0].size = ~std::uint64_t{0};
  CHECK(plan_device(problem, {}).error == "the requests need more memory than any device has");
  problem.requests.erase(problem.requests.begin(), problem.requests.begin() + 2);
  CHECK(plan_device(problem, {.handle_cap = kDefaultGranularity}).error ==
        "the plan would need more than 1048576 handles: raise the largest handle");
}

TEST_CASE("the granularity is the device's unless told otherwise") {
  Problem problem;
  CHECK(plan_and_check(problem).plan.granularity == kDefaultGranularity);
  problem.granularity = 1 << 16;
  CHECK(plan_and_check(problem).plan.granularity == 1 << 16);
  CHECK(plan_and_check(problem, {.granularity = 4096}).plan.granularity == 4096);
}

TEST_CASE("the search for places ends early where the options say so", "[plan]") {
  for (const std::uint64_t seed : seeds(10)) {
    CAPTURE(seed);
    const Problem problem = random_loop(seed, 1 + seed % 3);
    const PlanOptions options{.granularity = kSmallPage};
    const std::uint64_t pages = plan_and_check(problem, options).plan.physical_bytes;
    PlanOptions limited = options;
    limited.most_examined = 1;
    REQUIRE_FALSE(plan_device(problem, limited).ok());
    // The first places are found at some limit, and all are found at a higher one.
    for (; !plan_device(problem, limited).ok(); limited.most_examined *= 2) REQUIRE(limited.most_examined < 1 << 30);
    REQUIRE(plan_and_check(problem, limited).plan.physical_bytes >= pages);
    limited.most_examined = 1 << 30;
    REQUIRE(plan_and_check(problem, limited).plan.physical_bytes == pages);
  }
}
