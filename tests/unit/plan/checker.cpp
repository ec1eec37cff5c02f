// SPDX-License-Identifier: Apache-2.0
// The checker refuses every kind of unsound plan, made by hand, and accepts the sound one beside it.
#include "plan/checker.h"

#include "catch.h"

using namespace stalloc::plan;

namespace {

constexpr std::uint64_t kPage = std::uint64_t{2} << 20;

// Two requests of two pages on different streams, one after the other, in the same bytes; then one of 512 bytes.
struct Example {
  Problem problem;
  DevicePlan plan;

  Example() {
    add(2 * kPage, 1, 1);
    add(2 * kPage, 2, 2);
    add(512, 3, 1);
    problem.requests[1].until = problem.requests[1].upper = 3;
    plan.granularity = kPage;
    plan.handles = {kPage, kPage, kPage};
    plan.physical_bytes = 3 * kPage;
    plan.views = {{3 * kPage, {0, 1, 2}}, {2 * kPage, {1, 0}}};
    plan.slots = {{0, 2 * kPage, 0, 0, 1, 0, 1, SlotKind::Static, true},
                  {1, 2 * kPage, 0, 1, 3, 0, 2, SlotKind::Static, false},
                  {2, 512, 2 * kPage, 2, 3, 0, 1, SlotKind::Static, false}};
    plan.waits = {{1, 0}};
    plan.prologue = 3;
  }

  void add(std::uint64_t size, std::uint64_t until, std::uint32_t stream) {
    Request request;
    request.id = request.lower = problem.requests.size();
    request.size = size;
    request.until = request.upper = until;
    request.stream = request.allocation_stream = request.free_stream = stream;
    problem.requests.push_back(request);
  }

  [[nodiscard]] std::string fault() const { return find_unsoundness(problem, plan); }
};

// A body of two requests, repeated three times; the second lives into the next repetition.
struct Repeating {
  Problem problem;
  DevicePlan plan;

  Repeating() {
    problem.repeats = true;
    for (std::uint64_t i = 0; i < 6; ++i) {
      Request request;
      request.id = request.lower = i;
      request.size = 1000;
      request.until = request.upper = i % 2 == 0 ? i + 1 : i + 2;
      problem.requests.push_back(request);
    }
    problem.requests[5].until = kNever;
    plan.granularity = kPage;
    plan.handles = {kPage};
    plan.physical_bytes = kPage;
    plan.views = {{kPage, {0}}};
    plan.slots = {{0, 1000, 0, 0, 1, 0, 0, SlotKind::Static, false},
                  {1, 1000, 1024, 1, 3, 0, 0, SlotKind::Static, false}};
    plan.body = 2;
  }
};

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a sound plan is accepted") { CHECK(Example().fault().empty()); }

TEST_CASE("an overlap in the home view is refused") {
  Example example;
  example.plan.slots[2].offset = kPage;
  CHECK(contains(example.fault(), "request 2 takes bytes that request 1 still holds (physical offset 2097152)"));
}

TEST_CASE("an overlap through an alias view is refused") {
  Example example;
  example.plan.slots[2].view = 1;
  example.plan.slots[2].offset = kPage;  // page 0, by its other name
  CHECK(contains(example.fault(), "request 2 takes bytes that request 1 still holds (physical offset 0)"));
  example.plan.slots[2].offset = 0;  // page 1
  CHECK(contains(example.fault(), "physical offset 2097152"));
}

TEST_CASE("an overlap of two stitched views is refused") {
  Example example;
  example.plan.views.push_back({kPage * 2, {2, 1}});
  example.plan.slots[1].view = 1;  // pages 1 and 0
  CHECK(example.fault().empty());
  example.plan.slots[2].view = 2;
  example.plan.slots[2].offset = kPage;  // page 1
  CHECK(contains(example.fault(), "request 2 takes bytes that request 1 still holds"));
}

TEST_CASE("the bytes a request is rounded up to are its own") {
  Example example;
  example.problem.requests[1].size = example.plan.slots[1].size = kPage + 1;
  example.plan.slots[2].offset = kPage;
  CHECK(contains(example.fault(), "still holds"));
  example.plan.slots[2].offset = kPage + 512;
  CHECK(example.fault().empty());
}

TEST_CASE("a lifetime longer than planned is found, whatever the plan says") {
  Example example;
  example.problem.requests[0].until = 2;
  CHECK(contains(example.fault(), "request 1 takes bytes that request 0 still holds"));
}

TEST_CASE("memory of synchronous calls shares no page with what a stream has freed") {
  Example example;
  Request& request = example.problem.requests[2];
  request.allocation_stream = request.free_stream = kEveryStream;
  CHECK(example.fault().empty());
  example.problem.requests[1].until = example.problem.requests[1].upper = 2;
  example.problem.requests[1].size = example.plan.slots[1].size = kPage + 512;
  example.plan.slots[1].offset = kPage;  // and 512 bytes of the last page
  example.plan.slots[1].upper = 2;
  example.plan.slots[2].offset = 2 * kPage + 512;
  CHECK(contains(example.fault(), "request 2 may be used on any stream and shares a page with bytes freed on one"));
}

TEST_CASE("cudaFree of stream-ordered memory leaves its bytes ordered after earlier frees") {
  Example example;
  example.problem.requests[1].until = example.problem.requests[1].upper = example.plan.slots[1].upper = 2;
  example.problem.requests[1].free_stream = kEveryStream;
  example.problem.requests[2].stream = example.problem.requests[2].allocation_stream = 3;
  example.plan.slots[2].stream = 3;
  CHECK(example.fault().empty());
  example.plan.slots[2].offset = kPage;
  CHECK(contains(example.fault(), "request 2 takes bytes of request 0, freed on another stream, without a wait"));
  example.plan.waits.push_back({2, 0});
  CHECK(example.fault().empty());
}

TEST_CASE("a slot has the lifetime that its request has in the file") {
  Example example;
  example.plan.slots[1].upper = 4;
  CHECK(contains(example.fault(), "request 1 has a slot of another lifetime"));
  example.plan.slots[1].upper = 3;
  example.plan.slots[2].lower = 1;
  CHECK(contains(example.fault(), "request 2 has a slot of another lifetime"));
}

TEST_CASE("a slot of a run that does not repeat ends no earlier than its request") {
  Example example;
  example.problem.repeats = true;
  example.problem.requests[2].until = kNever;
  CHECK(example.fault().empty());
  example.plan.slots[1].upper = 2;
  CHECK(contains(example.fault(), "request 1 has a slot that ends at 2, before it is freed at 3"));
  example.plan.slots[1].upper = 3;
  example.plan.slots[2].upper = 2;
  CHECK(contains(example.fault(), "request 2 has a slot that ends at 2, before it is freed at 3"));
}

TEST_CASE("reuse across streams needs a wait and an event") {
  Example example;
  example.plan.waits.clear();
  CHECK(contains(example.fault(), "request 1 takes bytes of request 0, freed on another stream, without a wait"));
  example.plan.waits = {{1, 0}};
  example.plan.slots[0].event_on_free = false;
  CHECK(contains(example.fault(), "records no event"));
}

TEST_CASE("a free in an epilogue that begins like the body has an event in the body, too") {
  // A body of request 0, then the same request again, and request 2 of another stream and size in its bytes.
  Problem problem;
  problem.repeats = true;
  DevicePlan plan;
  plan.granularity = plan.physical_bytes = kPage;
  plan.handles = {kPage};
  plan.views = {{kPage, {0}}};
  plan.body = 1;
  for (std::uint64_t i = 0; i < 3; ++i) {
    Request& request = problem.requests.emplace_back();
    request.id = request.lower = i;
    request.size = i == 2 ? 512 : 1000;
    request.until = request.upper = i + 1;
    request.stream = request.allocation_stream = request.free_stream = i == 2 ? 7 : 1;
    plan.slots.push_back({i, request.size, 0, i, i + 1, 0, request.stream, SlotKind::Static, i == 1});
  }
  plan.waits = {{2, 1}};
  CHECK(
      contains(find_unsoundness(problem, plan), "request 2 waits for bytes of request 1, whose free records no event"));
  plan.slots[0].event_on_free = true;
  CHECK(find_unsoundness(problem, plan).empty());
}

TEST_CASE("reuse behind cudaFree needs none") {
  Example example;
  example.plan.waits.clear();
  example.problem.requests[0].free_stream = kEveryStream;
  CHECK(example.fault().empty());
}

TEST_CASE("cudaMalloc'd memory takes no bytes with a pending free") {
  Example example;
  example.problem.requests[1].allocation_stream = kEveryStream;
  CHECK(contains(example.fault(), "may be used on any stream"));
}

TEST_CASE("sizes, streams, ids, counts, bounds and alignment must match") {
  const auto fault_after = [](auto change) {
    Example example;
    change(example);
    return example.fault();
  };
  CHECK(contains(fault_after([](Example& e) { e.plan.slots[2].size = 511; }), "too small"));
  CHECK(contains(fault_after([](Example& e) { e.plan.slots[2].size = 1024; }), "another size"));
  CHECK(contains(fault_after([](Example& e) { e.plan.slots[2].stream = 9; }), "another stream"));
  CHECK(contains(fault_after([](Example& e) { e.plan.slots[2].id = 9; }), "slot of id 9"));
  CHECK(contains(fault_after([](Example& e) { e.plan.slots[2].offset += 8; }), "not aligned"));
  CHECK(contains(fault_after([](Example& e) { e.plan.slots[2].offset = 3 * kPage; }), "ends outside its view"));
  CHECK(contains(fault_after([](Example& e) { e.plan.slots[2].view = 5; }), "does not exist"));
  CHECK(contains(fault_after([](Example& e) { e.plan.slots.pop_back(); }), "2 slots for 3 requests"));
  CHECK(contains(fault_after([](Example& e) { e.problem.requests[2].pass = PassReason::Captured; }),
                 "must be passed through"));
  CHECK(fault_after([](Example& e) {
          e.problem.requests[2].pass = PassReason::Captured;
          e.plan.slots[2].kind = SlotKind::PassThrough;
        }).empty());
  CHECK(fault_after([](Example& e) {
          e.plan.slots[2].kind = SlotKind::Dynamic;
          e.plan.slots[2].size = 4096;
        }).empty());
}

TEST_CASE("a body that repeats soundly is accepted") {
  const Repeating example;
  CHECK(find_unsoundness(example.problem, example.plan).empty());
}

TEST_CASE("a slot of the body ends no earlier than its request in any repetition") {
  Repeating example;
  for (const std::uint64_t upper : {std::uint64_t{2}, std::uint64_t{1}}) {
    example.plan.slots[1].upper = upper;
    CHECK(contains(find_unsoundness(example.problem, example.plan),
                   "request 1 has a slot that ends at " + std::to_string(upper) + ", before it is freed at 3"));
  }
  example.problem.requests[1].until = 2;  // only in the second repetition it is freed later
  example.plan.slots[1].upper = 2;
  CHECK(contains(find_unsoundness(example.problem, example.plan), "request 3 has a slot that ends at 2"));
  example.problem.requests[3].until = 4;
  CHECK(find_unsoundness(example.problem, example.plan).empty());  // the last one outlives all repetitions
}

TEST_CASE("slots around the body end no earlier than their requests") {
  Repeating example;
  const Request request = example.problem.requests[0];
  for (const std::size_t place : {std::size_t{0}, std::size_t{7}}) {  // before and after the repetitions
    example.problem.requests.insert(example.problem.requests.begin() + static_cast<std::ptrdiff_t>(place), request);
  }
  for (std::size_t i = 0; i < 8; ++i) {
    Request& each = example.problem.requests[i];
    each.id = each.lower = i;
    if (i > 0 && i < 7 && each.until != kNever) ++each.until;
  }
  example.plan.prologue = 1;
  example.plan.slots = {{0, 1000, 2048, 0, 1, 0, 0, SlotKind::Static, false},
                        {1, 1000, 0, 1, 2, 0, 0, SlotKind::Static, false},
                        {2, 1000, 1024, 2, 4, 0, 0, SlotKind::Static, false},
                        {7, 1000, 0, 3, 4, 0, 0, SlotKind::Static, false}};
  const auto ends = [&](std::size_t slot, std::uint64_t until, std::uint64_t upper) {
    const std::size_t made = example.plan.slots[slot].id;
    example.problem.requests[made].until = until;
    example.plan.slots[slot].upper = upper;
    return find_unsoundness(example.problem, example.plan);
  };
  CHECK(ends(0, 2, 2).empty());
  CHECK(contains(ends(0, 2, 1), "request 0 has a slot that ends at 1, before it is freed at 2"));
  CHECK(ends(0, 5, 3).empty());  // in a later repetition, no matter which
  CHECK(contains(ends(0, 5, 2), "request 0 has a slot that ends at 2, before it is freed at 3"));
  CHECK(ends(0, 8, 4).empty());
  CHECK(contains(ends(0, 8, 3), "request 0 has a slot that ends at 3, before it is freed at 4"));
  CHECK(ends(0, kNever, 4).empty());
  CHECK(ends(3, kNever, 4).empty());
  CHECK(contains(ends(3, 8, 3), "request 7 has a slot that ends at 3, before it is freed at 4"));
}

TEST_CASE("an overlap with the repetition before is refused") {
  Repeating example;
  example.plan.slots[0].offset = 1024;  // request 1 still holds it when request 2 comes
  CHECK(contains(find_unsoundness(example.problem, example.plan), "request 0 takes bytes that request 1 still holds"));
}

TEST_CASE("the plan's own lifetimes are played too, beyond the recorded repetitions") {
  Repeating example;
  example.problem.requests.resize(2);  // recorded once; only the plan says that request 1 lives on
  example.problem.requests[1].until = 2;
  example.plan.slots[0].offset = 1024;
  const std::string fault = find_unsoundness(example.problem, example.plan);
  CHECK(contains(fault, "still holds"));
  CHECK(contains(fault, "when the body repeats"));
}

TEST_CASE("a number of requests that no number of repetitions gives is refused") {
  Repeating example;
  example.problem.requests.pop_back();
  CHECK(contains(find_unsoundness(example.problem, example.plan), "no number of repetitions"));
}

TEST_CASE("waits between repetitions are demanded") {
  Repeating example;
  example.plan.slots[1].offset = 0;
  for (std::size_t i = 1; i < 6; i += 2) example.problem.requests[i].until = i + 1;
  for (std::size_t i = 1; i < 6; i += 2) {
    example.problem.requests[i].stream = example.problem.requests[i].allocation_stream =
        example.problem.requests[i].free_stream = 7;
  }
  example.plan.slots[1].stream = 7;
  example.plan.slots[1].upper = 2;
  example.plan.slots[0].event_on_free = example.plan.slots[1].event_on_free = true;
  example.plan.waits = {{1, 0}};
  CHECK(contains(find_unsoundness(example.problem, example.plan), "without a wait"));  // 0 after the last 1
  example.plan.waits = {{0, 1}, {1, 0}};
  CHECK(find_unsoundness(example.problem, example.plan).empty());
}

namespace {

// Two threads, each with a slot in a body of two. The second thread comes first in the second repetition.
struct TwoThreads {
  Repeating of;

  TwoThreads() {
    of.plan.lanes = {0, 1};
    for (std::size_t i = 0; i < 6; ++i) of.problem.requests[i].until = i + 1;
    for (const std::size_t i : {1U, 2U, 5U}) of.problem.requests[i].thread = 7;
    of.problem.requests[5].until = kNever;
  }
  [[nodiscard]] std::string fault() const { return find_unsoundness(of.problem, of.plan); }
};

}  // namespace

TEST_CASE("each thread takes the slots of its lane, whoever comes first") {
  CHECK(TwoThreads().fault().empty());
  TwoThreads one_order;
  one_order.of.problem.requests[2].size = one_order.of.problem.requests[1].size = 3000;
  one_order.of.problem.requests[5].size = one_order.of.plan.slots[1].size = 3000;
  CHECK(one_order.fault().empty());
  one_order.of.plan.lanes.clear();
  CHECK(contains(one_order.fault(), "too small"));
}

TEST_CASE("what lived together in the recorded order may share no byte, whatever the plan's order says") {
  TwoThreads example;
  example.of.plan.slots[1].upper = 2;
  example.of.plan.slots[1].offset = 0;
  CHECK(example.fault().empty());
  example.of.problem.requests[2].until = 4;  // the second thread's, until after the first one's request 3
  CHECK(contains(example.fault(), "request 0 takes bytes that request 1 still holds"));
}

TEST_CASE("threads without a lane take no bytes") {
  TwoThreads example;
  example.of.problem.requests[3].thread = 9;
  example.of.problem.requests[3].size = 1 << 30;
  CHECK(example.fault().empty());
}

TEST_CASE("a lane whose requests nobody makes is refused") {
  TwoThreads example;
  example.of.plan.slots.push_back({77, 1000, 0, 2, 3, 0, 0, SlotKind::Static, false});
  example.of.plan.lanes.push_back(2);
  CHECK(contains(example.fault(), "1 slots for 0 requests"));
}
