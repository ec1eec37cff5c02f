// SPDX-License-Identifier: Apache-2.0
// The order that the library learns from the program's events, case by case.
#include "interpose/serve/streams/event_order.h"

#include <vector>

#include "catch.h"
#include "order_model.h"

using namespace stalloc::test;
using stalloc::serve::kMaxStreams;
using stalloc::serve::StreamClock;

namespace {

constexpr auto kNothing = [] {};

struct Fixture {
  OrderModel model;
  OrderModel::Stream s = model.make_stream(0);
  OrderModel::Stream t = model.make_stream(0);
  CUevent event = model.make_event(0);
  std::uint64_t calls = 0;

  Fixture() {
    // Both streams use memory, so events are tracked from now on.
    model.take(s, 0);
    model.take(t, 0);
  }
  void record(const OrderModel::Stream& on) { model.record(event, on, false, kNothing); }
  void wait(const OrderModel::Stream& on) { model.wait(on, event, false, kNothing); }
  // The number of waits that the library makes for the page.
  std::uint64_t waits_for(const OrderModel::Stream& stream, std::size_t page = 0) {
    auto& order = model.contexts[stream.context].order;
    const std::uint64_t before = order.waits();
    model.take(stream, page);
    return order.waits() - before;
  }
  std::uint64_t spared() { return model.contexts[0].order.spared_waits(); }
};

}  // namespace

TEST_CASE("bytes that the program ordered itself need no wait", "[serve][events]") {
  Fixture f;
  f.model.use_and_free(f.t, 0);
  f.record(f.t);
  f.wait(f.s);
  const std::uint64_t calls = f.model.driver.order_calls();
  REQUIRE(f.waits_for(f.s) == 0);
  REQUIRE(f.model.driver.order_calls() == calls);
  REQUIRE(f.spared() == 1);
  REQUIRE(f.waits_for(f.s) == 0);
  REQUIRE(f.spared() == 1);  // the library would have needed one wait
}

TEST_CASE("a free after the record is not ordered by it", "[serve][events]") {
  Fixture f;
  f.record(f.t);
  f.model.use_and_free(f.t, 0);
  f.wait(f.s);
  REQUIRE(f.waits_for(f.s) == 1);
  REQUIRE(f.spared() == 0);
}

TEST_CASE("a free during the record is not ordered by it", "[serve][events]") {
  Fixture f;
  f.model.record(f.event, f.t, false, [&] { f.model.use_and_free(f.t, 0); });
  f.wait(f.s);
  f.model.check(f.s);
  REQUIRE(f.waits_for(f.s) == 1);
}

TEST_CASE("order is passed on by streams that free nothing", "[serve][events]") {
  Fixture f;
  const OrderModel::Stream between = f.model.make_stream(0);
  const CUevent second = f.model.make_event(0);
  f.model.use_and_free(f.t, 0);
  f.record(f.t);
  f.wait(between);
  f.model.record(second, between, false, kNothing);
  f.model.wait(f.s, second, false, kNothing);
  REQUIRE(f.waits_for(f.s) == 0);
}

TEST_CASE("a wait that fails orders nothing", "[serve][events]") {
  Fixture f;
  f.model.use_and_free(f.t, 0);
  f.record(f.t);
  f.model.wait(f.s, f.event, true, kNothing);
  REQUIRE(f.waits_for(f.s) == 1);
}

TEST_CASE("a record that fails leaves no clock", "[serve][events]") {
  Fixture f;
  f.record(f.t);
  f.model.use_and_free(f.t, 0);
  f.model.record(f.event, f.t, true, kNothing);
  f.wait(f.s);
  REQUIRE(f.waits_for(f.s) == 1);
}

TEST_CASE("an event that is recorded while a stream waits for it orders nothing", "[serve][events]") {
  Fixture f;
  const bool blindly = GENERATE(false, true);
  const OrderModel::Stream u = f.model.make_stream(0);
  f.model.use_and_free(f.t, 0);
  f.record(f.t);
  bool first = true;
  f.model.wait(f.s, f.event, false, [&] {
    if (std::exchange(first, false)) blindly ? f.model.record_untracked(f.event, u) : f.record(u);
  });
  f.model.check(f.s);
  REQUIRE(f.waits_for(f.s) == 1);
}

TEST_CASE("two concurrent records of an event leave no clock, whichever is the last", "[serve][events]") {
  Fixture f;
  const OrderModel::Stream u = f.model.make_stream(0);
  const int when = GENERATE(1, 2);  // the other thread records before or after CUDA does
  const bool other_first = GENERATE(false, true);
  f.model.use_and_free(f.t, 0);
  int part = 0;
  f.model.record(f.event, other_first ? u : f.t, false, [&] {
    if (++part == when) f.record(other_first ? f.t : u);
  });
  f.wait(f.s);
  f.model.check(f.s);
  REQUIRE(f.waits_for(f.s) == 1);
}

TEST_CASE("a stream that waits between two concurrent records learns nothing", "[serve][events]") {
  Fixture f;
  const OrderModel::Stream u = f.model.make_stream(0);
  f.model.use_and_free(f.t, 0);
  int part = 0;
  // The other thread's record is the last.
  f.model.record(f.event, u, false, [&] { ++part == 1 ? f.record(f.t) : f.wait(f.s); });
  f.model.check(f.s);
  REQUIRE(f.waits_for(f.s) == 1);
}

TEST_CASE("a third record that begins while two are under way leaves no clock either", "[serve][events]") {
  Fixture f;
  const OrderModel::Stream u = f.model.make_stream(0);
  const CUevent event = f.event;
  f.model.use_and_free(f.t, 0);
  int part = 0;
  f.model.record(event, u, false, [&] {
    if (++part == 1) {
      f.model.record(event, u, false, kNothing);
      f.record(f.t);
    } else {
      f.wait(f.s);
    }
  });
  f.model.check(f.s);
  REQUIRE(f.waits_for(f.s) == 1);
}

TEST_CASE("a record that is under way when the first clock is read is known", "[serve][events]") {
  OrderModel model;
  const OrderModel::Stream s = model.make_stream(0);
  const OrderModel::Stream t = model.make_stream(0);
  const OrderModel::Stream u = model.make_stream(0);
  const CUevent event = model.make_event(0);
  model.record(event, u, false, [&, first = true]() mutable {
    if (!std::exchange(first, false)) return;
    model.take(s, 0);
    model.use_and_free(t, 0);
    model.record(event, t, false, kNothing);
  });
  model.wait(s, event, false, kNothing);
  model.check(s);
}

TEST_CASE("captures order nothing", "[serve][events]") {
  Fixture f;
  f.model.use_and_free(f.t, 0);
  SECTION("the record is captured") {
    f.record(f.t);
    f.model.begin_capture(f.t);
    f.record(f.t);
    f.model.end_capture(f.t);
    f.wait(f.s);
  }
  SECTION("the wait is captured") {
    f.record(f.t);
    f.model.begin_capture(f.s);
    f.wait(f.s);
    f.model.end_capture(f.s);
  }
  SECTION("a capture begins and ends while the event is recorded") {
    int part = 0;
    f.model.record(f.event, f.t, false, [&] { ++part == 1 ? f.model.begin_capture(f.t) : f.model.end_capture(f.t); });
    f.wait(f.s);
  }
  SECTION("a capture begins and ends while the stream waits") {
    f.record(f.t);
    int part = 0;
    f.model.wait(f.s, f.event, false, [&] { ++part == 1 ? f.model.begin_capture(f.s) : f.model.end_capture(f.s); });
  }
  f.model.check(f.s);
  REQUIRE(f.waits_for(f.s) == 1);
}

TEST_CASE("an event that is destroyed, or created again with the same handle, has no clock", "[serve][events]") {
  Fixture f;
  f.model.use_and_free(f.t, 0);
  f.record(f.t);
  f.model.destroy_event(f.event);
  const CUevent again = f.model.make_event(0);
  REQUIRE(again == f.event);
  f.wait(f.s);
  f.model.check(f.s);
  REQUIRE(f.waits_for(f.s) == 1);
}

TEST_CASE("an event that others may record is distrusted", "[serve][events]") {
  Fixture f;
  f.model.use_and_free(f.t, 0);
  const bool before = GENERATE(false, true);
  if (before) f.model.events->distrust(f.event);
  f.record(f.t);
  if (!before) f.model.events->distrust(f.event);
  f.model.record_now(f.event, f.s);
  f.wait(f.s);
  f.model.check(f.s);
  f.record(f.t);
  f.wait(f.s);
  REQUIRE(f.waits_for(f.s) == 1);
}

// If two handles have the same entry of the table, its clock belongs to one of them.
TEST_CASE("an event has no other event's clock", "[serve][events]") {
  Fixture f;
  f.model.use_and_free(f.t, 0);
  f.record(f.t);
  for (std::uintptr_t handle = 1; handle < 100'000; ++handle) {
    const auto other = reinterpret_cast<CUevent>(handle << 36);
    f.model.events->wait(
        other, f.model.gate, [&] { return f.model.clock(f.s); }, [] { return CUDA_SUCCESS; });
  }
  f.model.check(f.s);
  REQUIRE(f.waits_for(f.s) == 1);
}

TEST_CASE("after a look-up of an unknown function that records events, all are distrusted", "[serve][events]") {
  Fixture f;
  for (const char* name :
       {"cudaEventRecord", "cuEventElapsedTime_v3", "cuGraphEventRecordNodeGetEvent", "cuEventQuery"}) {
    f.model.events->looked_up(name);
  }
  f.model.use_and_free(f.t, 0);
  f.record(f.t);
  f.wait(f.s);
  REQUIRE(f.waits_for(f.s) == 0);
  f.model.use_and_free(f.t, 1);
  f.record(f.t);
  f.model.events->looked_up(
      GENERATE("cuEventRecord_v9", "cuCtxRecordEvent_v9", "cuGraphAddNode_v9", "cuIpcOpenEventHandle_v9"));
  f.wait(f.s);
  REQUIRE(f.waits_for(f.s, 1) == 1);
}

TEST_CASE("a stream of another context learns nothing", "[serve][events]") {
  Fixture f;
  const OrderModel::Stream other = f.model.make_stream(1);
  const OrderModel::Stream second = f.model.make_stream(1);
  f.model.take(other, 0);
  f.model.take(second, 0);
  f.model.use_and_free(second, 0);
  f.model.use_and_free(f.t, 0);
  f.record(f.t);
  f.wait(other);
  f.model.check(other);
  REQUIRE(f.waits_for(other) == 1);
}

TEST_CASE("when an event is complete, everything before it is complete", "[serve][events]") {
  Fixture f;
  f.model.use_and_free(f.t, 0);
  f.record(f.t);
  f.model.use_and_free(f.t, 1);
  f.model.query(f.event, kNothing);
  f.model.check_complete(0);
  f.model.synchronize(f.event, kNothing);
  f.model.check_complete(0);
  const std::uint64_t calls = f.model.driver.order_calls();
  f.model.take_for_all(0, 0);
  REQUIRE(f.model.driver.order_calls() == calls);
  f.model.take_for_all(0, 1);
  REQUIRE(f.model.driver.order_calls() > calls);
}

TEST_CASE("an event that is recorded during its query tells nothing", "[serve][events]") {
  Fixture f;
  const OrderModel::Stream idle = f.model.make_stream(0);
  f.model.use_and_free(f.t, 0);
  f.record(f.t);
  const bool blindly = GENERATE(false, true);
  f.model.query(f.event, [&, first = true]() mutable {
    if (std::exchange(first, false)) blindly ? f.model.record_untracked(f.event, idle) : f.record(idle);
  });
  f.model.check_complete(0);
}

TEST_CASE("after synchronizing with a stream, everything that it was ordered after is complete", "[serve][events]") {
  Fixture f;
  f.model.use_and_free(f.t, 0);
  f.record(f.t);
  f.wait(f.s);
  f.model.use_and_free(f.s, 1);
  f.model.synchronize(f.s, [&] { f.model.use_and_free(f.s, 2); });
  f.model.check_complete(0);
  const auto& clocks = f.model.contexts[0].order.clocks();
  REQUIRE(clocks.complete_up_to(2) != 0);
  REQUIRE(clocks.complete_up_to(1) != 0);
}

// A free on a blocking stream is ordered after the legacy stream's work, but the stream itself has no such work.
TEST_CASE("frees of a blocking stream are not known to be complete when the stream is idle", "[serve][events]") {
  OrderModel model;
  const OrderModel::Stream s = model.make_stream(0, CU_STREAM_DEFAULT);
  model.take(model.make_stream(0), 0);
  model.use_and_free(s, 0);
  model.synchronize(s, kNothing);
  REQUIRE(model.contexts[0].order.clocks().complete_up_to(2) == 0);
}

TEST_CASE("events are still trusted when streams are created and destroyed", "[serve][events]") {
  Fixture f;
  for (int i = 0; i < 2 * kMaxStreams; ++i) {
    const OrderModel::Stream u = f.model.make_stream(0);
    f.wait(u);
    f.model.check(u);
    f.model.use_and_free(u, 0);
    f.record(u);
    f.wait(f.s);
    f.model.check(f.s);
    f.model.synchronize(u, kNothing);
    f.model.destroy_stream(u);
  }
  REQUIRE(f.model.contexts[0].order.clocks().count() < 5);
}

TEST_CASE("streams without a clock wait", "[serve][events]") {
  Fixture f;
  std::vector<OrderModel::Stream> streams;
  for (std::size_t i = 0; i < StreamClock::kStreams; ++i) {
    streams.push_back(f.model.make_stream(0));
    f.model.take(streams.back(), 0);
  }
  f.model.use_and_free(streams.back(), 0);
  f.record(streams.back());
  f.wait(f.s);
  REQUIRE(f.waits_for(f.s) == 1);
  REQUIRE(f.model.clock(streams.back()) == nullptr);
}

// A thread that makes the stream wait writes its clock without the heap's lock.
TEST_CASE("a stream that exists and has a clock keeps its ordinal", "[serve][events]") {
  Fixture f;
  StreamClock* const clock = f.model.clock(f.s);
  for (int i = 0; i < 2 * kMaxStreams; ++i) {
    const OrderModel::Stream u = f.model.make_stream(0);
    f.model.use_and_free(u, 0);
    f.model.driver.finish_all_work();
  }
  REQUIRE(clock->is_for(f.s.key));
  REQUIRE(f.model.clock(f.s) == clock);
}
