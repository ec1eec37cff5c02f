// SPDX-License-Identifier: Apache-2.0
// Random programs of streams and events. Every order that the library relies on must be true in the fake driver, which
// knows the true order. All numbers of the library are checked after every step.
#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "catch.h"
#include "order_model.h"
#include "tests/unit/seeds.h"

using namespace stalloc::test;

namespace {

using Random = std::mt19937_64;
constexpr auto kNothing = [] {};

// One thread that makes all calls. During a call it makes others, as other threads would.
class Program {
 public:
  // `events`: with fewer events, more of them are recorded twice at once, after which they are distrusted.
  Program(OrderModel* model, std::uint64_t seed, std::size_t events) : model_(*model), random_(seed) {
    for (std::size_t i = 0; i < 7; ++i) {
      const std::size_t context = i < 5 ? 0 : 1;
      streams_.push_back({model_.make_stream(context, i == 1 ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING)});
    }
    for (std::size_t i = 0; i < events; ++i) {
      const std::size_t context = i % 4 == 3 ? 1 : 0;
      events_.push_back({model_.make_event(context), context});
    }
  }

  void step() {
    act(0);
    for (Stream& stream : streams_) {
      if (stream.capturing && one_in(3)) end_capture(stream);
    }
    check();
  }
  void check() {
    for (const Stream& stream : streams_) model_.check(stream.stream);
    for (const std::size_t context : {0, 1}) model_.check_complete(context);
  }

 private:
  struct Stream {
    OrderModel::Stream stream;
    bool capturing = false;
    int used = 0;  // calls under way
  };
  struct Event {
    CUevent event = nullptr;
    std::size_t context = 0;
    int used = 0;
    bool distrusted = false;
  };

  std::size_t below(std::size_t bound) { return random_() % bound; }
  bool one_in(std::size_t n) { return below(n) == 0; }
  Stream& any_stream() { return streams_[below(streams_.size())]; }
  Event& any_event() { return events_[below(events_.size())]; }

  void act(int depth) {
    const auto meanwhile = [this, depth] {
      if (depth < 2 && one_in(3)) act(depth + 1);
    };
    Stream& stream = any_stream();
    Event& event = any_event();
    ++stream.used;
    ++event.used;
    switch (below(16)) {
      case 0:
      case 1:
      case 2:
        if (!stream.capturing) model_.use_and_free(stream.stream, below(OrderModel::kPages));
        break;
      case 3:
      case 4:
      case 5:
        if (event.context == stream.stream.context) model_.record(event.event, stream.stream, one_in(12), meanwhile);
        break;
      case 6:
      case 7:
      case 8:
        model_.wait(stream.stream, event.event, one_in(12), meanwhile);
        break;
      case 9:
        if (!stream.capturing && one_in(2)) model_.take(stream.stream, below(OrderModel::kPages));
        break;
      case 10:
        one_in(2) ? model_.query(event.event, meanwhile) : model_.take_for_all(below(2), below(OrderModel::kPages));
        break;
      case 11:
        if (one_in(6)) model_.synchronize(event.event, meanwhile);
        break;
      case 12:
        if (one_in(6) && !stream.capturing) model_.synchronize(stream.stream, meanwhile);
        break;
      case 13:
        if (stream.capturing) {
          end_capture(stream);
        } else if (one_in(2)) {
          model_.begin_capture(stream.stream);
          stream.capturing = true;
        }
        break;
      case 14:
        rare(stream, event, meanwhile);
        break;
      default:
        replace(stream, event);
        break;
    }
    --stream.used;
    --event.used;
  }

  template <class Meanwhile>
  void rare(Stream& stream, Event& event, Meanwhile meanwhile) {
    const bool same = event.context == stream.stream.context;
    switch (below(4)) {
      case 0:
        if (same) model_.record_untracked(event.event, stream.stream);
        break;
      case 1:  // shared with other processes, which may record it
        if (&event == &events_.front() || event.distrusted) {
          model_.events->distrust(event.event);
          event.distrusted = true;
          if (same) model_.record_now(event.event, stream.stream);
        }
        break;
      default:
        if (one_in(8) && !any_captures()) model_.synchronize(std::size_t{below(2)}, meanwhile);
        break;
    }
  }

  void end_capture(Stream& stream) {
    model_.end_capture(stream.stream);
    stream.capturing = false;
  }

  // An object that no other call uses at the moment.
  void replace(Stream& stream, Event& event) {
    if (one_in(2) && event.used == 1) {
      model_.destroy_event(event.event);
      event.event = model_.make_event(event.context);
    }
    if (!one_in(2) || stream.used != 1 || stream.capturing) return;
    const unsigned flags = one_in(3) ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
    model_.destroy_stream(stream.stream);
    stream.stream = model_.make_stream(stream.stream.context, flags);
  }

  bool any_captures() const {
    for (const Stream& stream : streams_) {
      if (stream.capturing) return true;
    }
    return false;
  }

  OrderModel& model_;
  Random random_;
  std::vector<Stream> streams_;
  std::vector<Event> events_;
};

}  // namespace

TEST_CASE("random programs of events: everything that is relied on is true", "[serve][events][random]") {
  const std::uint64_t seed = GENERATE(from_range(stalloc::seeds(60)));
  CAPTURE(seed);
  OrderModel model;
  Program program(&model, seed, 12);
  REQUIRE_NOTHROW([&] {
    for (int step = 0; step < 400; ++step) program.step();
  }());
  REQUIRE(model.believed() > 100);
}

TEST_CASE("short random programs with few events: everything that is relied on is true", "[serve][events][random]") {
  std::uint64_t believed = 0;
  for (const std::uint64_t seed : stalloc::seeds(600)) {
    CAPTURE(seed);
    OrderModel model;
    Program program(&model, seed, 2);
    REQUIRE_NOTHROW([&] {
      for (int step = 0; step < 40; ++step) program.step();
    }());
    believed += model.believed();
  }
  REQUIRE(believed > 600);
}

TEST_CASE("threads that share streams and events: everything that is relied on is true", "[serve][events][threads]") {
  const std::uint64_t seed = GENERATE(from_range(stalloc::seeds(5)));
  CAPTURE(seed);
  OrderModel model;
  std::vector<OrderModel::Stream> streams;
  std::vector<CUevent> events;
  for (int i = 0; i < 4; ++i) streams.push_back(model.make_stream(0));
  for (int i = 0; i < 3; ++i) events.push_back(model.make_event(0));
  std::atomic<int> broken{0};
  const auto run = [&](std::uint64_t thread) {
    Random random(seed * 10 + thread);
    try {
      for (int step = 0; step < 600; ++step) {
        const OrderModel::Stream& stream = streams[random() % streams.size()];
        const CUevent event = events[random() % events.size()];
        switch (random() % 8) {
          case 0:
          case 1:
            model.use_and_free(stream, random() % OrderModel::kPages);
            break;
          case 2:
          case 3:
            model.record(event, stream, false, kNothing);
            break;
          case 4:
          case 5:
            model.wait(stream, event, false, kNothing);
            break;
          case 6:
            random() % 8 == 0 ? model.synchronize(event, kNothing) : model.query(event, kNothing);
            break;
          default:
            model.check(stream);
            model.check_complete(0);
            break;
        }
      }
    } catch (const std::exception&) {
      ++broken;
    }
  };
  std::vector<std::thread> threads;
  for (std::uint64_t thread = 0; thread < 4; ++thread) threads.emplace_back(run, thread);
  for (std::thread& thread : threads) thread.join();
  REQUIRE(broken == 0);
  for (const OrderModel::Stream& stream : streams) REQUIRE_NOTHROW(model.check(stream));
}
