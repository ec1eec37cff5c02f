// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/streams/stream_order.h"

#include <thread>
#include <vector>

#include "as_heap.h"
#include "catch.h"
#include "fake_driver.h"

using namespace stalloc::test;
using stalloc::make_stream_key;
using stalloc::StreamKey;
using stalloc::serve::kMaxStreams;
using stalloc::serve::kNoStream;
using stalloc::serve::PhysicalRange;
using stalloc::serve::StreamOrder;
using stalloc::serve::StreamOrdinal;

namespace {

constexpr std::uint64_t kPage = 64 << 10;
using Ranges = std::vector<PhysicalRange>;
constexpr std::size_t kEvents = 8192;  // more than any test needs

struct Fixture {
  FakeDriver driver{kPage};
  StreamOrder order{driver, FakeDriver::context(), 16 * kPage, kPage};
  StreamKey s{driver.new_stream(), 0};
  StreamKey t{driver.new_stream(), 0};
  const Ranges page{{0, kPage}};
  const Ranges part{{512, 2048}};

  Fixture() { create_events(order, driver, kEvents); }

  Moment use_and_free(const Ranges& ranges, StreamKey key, bool event_now = true) {
    const Moment moment = driver.work(key);
    free_on(order, ranges, order.ordinal(key), event_now);
    return moment;
  }
  bool use(const Ranges& ranges, StreamKey key) { return order_now(order, ranges, order.ordinal(key)); }
};

}  // namespace

TEST_CASE("a stream of which no event is wanted for long is not watched, and is again once one is missed",
          "[serve][order]") {
  constexpr std::uint64_t kWatched = 500;
  FakeDriver driver{kPage};
  StreamOrder order{driver, FakeDriver::context(), 16 * kPage, kPage, nullptr, kWatched};
  create_events(order, driver, kEvents);
  const StreamKey s{driver.new_stream(), 0};
  const StreamKey t{driver.new_stream(), 0};
  const Ranges page{{0, kPage}};
  const auto free = [&](StreamKey key) {
    const Moment moment = driver.work(key);
    const StreamOrdinal stream = order.ordinal(key);
    free_on(order, page, stream, false, true);
    return moment;
  };
  const auto events_of_frees = [&](int frees) {
    const std::uint64_t calls = driver.order_calls();
    for (int i = 0; i < frees; ++i) free(t);
    return driver.order_calls() - calls;
  };
  REQUIRE(order.ordinal(s) != kNoStream);
  REQUIRE(events_of_frees(kWatched) >= kWatched);
  REQUIRE(order_now(order, page, order.ordinal(s)));  // an event is wanted
  REQUIRE(events_of_frees(kWatched) >= kWatched);
  const std::uint64_t few = events_of_frees(640);
  REQUIRE(few >= 10);  // which tell that frees are complete
  REQUIRE(few <= 40);

  const Moment missed = free(t);
  REQUIRE_FALSE(order_now(order, page, order.ordinal(s)));
  REQUIRE_FALSE(driver.is_ordered(s, missed));
  const Moment freed = free(t);
  REQUIRE(order_now(order, page, order.ordinal(s)));
  REQUIRE(driver.is_ordered(s, freed));
  driver.finish_all_work();
  REQUIRE(order.is_complete(page));

  // An event was missed, so the stream is watched for twice as long.
  REQUIRE(events_of_frees(2 * kWatched - 1) >= 2 * kWatched - 1);
  events_of_frees(2);
  REQUIRE(events_of_frees(64) < 10);

  // A new stream may want other events.
  REQUIRE(order.ordinal({driver.new_stream(), 0}) != kNoStream);
  REQUIRE(events_of_frees(64) >= 64);
}

TEST_CASE("a stream uses its own freed bytes and new bytes without a driver call", "[serve][order]") {
  Fixture f;
  REQUIRE(f.use(f.page, f.s));
  f.use_and_free(f.page, f.s);
  const std::uint64_t calls = f.driver.order_calls();
  REQUIRE(f.use(f.page, f.s));
  REQUIRE(f.use({{kPage, 3 * kPage}}, f.s));
  REQUIRE(f.driver.order_calls() == calls);
}

TEST_CASE("another stream waits for the free, once", "[serve][order]") {
  Fixture f;
  const Ranges ranges = GENERATE(Ranges{{0, kPage}}, Ranges{{512, 2048}}, Ranges{{1024, 3 * kPage + 512}});
  const Moment freed = f.use_and_free(ranges, f.t);
  REQUIRE_FALSE(f.driver.is_ordered(f.s, freed));
  REQUIRE(f.use(ranges, f.s));
  REQUIRE(f.driver.is_ordered(f.s, freed));
  const std::uint64_t calls = f.driver.order_calls();
  REQUIRE(f.use(ranges, f.s));
  REQUIRE(f.driver.order_calls() == calls);
  REQUIRE(f.order.waits() == 1);
}

TEST_CASE("an event that a stream is about to wait for is not recorded again before", "[serve][order]") {
  Fixture f;
  const Moment freed = f.use_and_free(f.page, f.t);
  REQUIRE(f.order.order(f.page, f.order.ordinal(f.s)));
  StreamOrder::Waits waits = f.order.take_waits();
  REQUIRE_FALSE(f.order.has_waits());
  REQUIRE_FALSE(f.order.is_ordered(f.page, f.order.ordinal(f.s)));
  Moment later;
  for (std::size_t i = 0; i < 2 * kEvents; ++i) later = f.use_and_free(f.page, f.t);  // uses every event there is
  f.order.make(waits);
  REQUIRE(waits.all_are_made());
  f.order.note_made(std::move(waits));
  REQUIRE(f.driver.is_ordered(f.s, freed));
  REQUIRE_FALSE(f.driver.is_ordered(f.s, later));
  REQUIRE_FALSE(f.order.is_ordered(f.page, f.order.ordinal(f.s)));
}

TEST_CASE("a wait is avoided between streams that the program has ordered before", "[serve][order]") {
  Fixture f;
  const auto order_without_avoidable_wait = [&](StreamKey key) {
    return f.order.order_without_avoidable_wait(f.page, f.order.ordinal(key)) && make_waits(f.order);
  };
  f.use_and_free(f.page, f.t);
  REQUIRE(order_without_avoidable_wait(f.s));  // the program has ordered nothing yet
  REQUIRE(f.order.waits() == 1);
  f.use_and_free(f.page, f.t);
  const StreamOrdinal owner = f.order.ordinal(f.t);
  f.order.clock(f.s)->raise(owner, f.order.latest_number());
  REQUIRE(order_without_avoidable_wait(f.s));  // the streams are ordered now
  REQUIRE(f.order.spared_waits() == 1);
  REQUIRE(f.order.waits() == 1);
  f.use_and_free(f.page, f.t);
  const std::uint64_t calls = f.driver.order_calls();
  REQUIRE_FALSE(order_without_avoidable_wait(f.s));
  REQUIRE(order_without_avoidable_wait(f.t));
  REQUIRE(f.driver.order_calls() == calls);
  const bool waits = GENERATE(false, true);
  if (waits) {
    REQUIRE(f.use(f.page, f.s));
  } else {
    f.driver.finish_all_work();
    f.order.poll_thoroughly();
  }
  REQUIRE(order_without_avoidable_wait(f.s));
  REQUIRE(f.order.waits() == (waits ? 2 : 1));
  f.use_and_free(f.page, f.s);
  REQUIRE(order_without_avoidable_wait(f.t));  // the program has not ordered them the other way round
  REQUIRE(f.order.waits() == (waits ? 3 : 2));
}

TEST_CASE("a new stream does not count as one that the program orders", "[serve][order]") {
  Fixture f;
  f.use_and_free(f.page, f.t);
  f.order.clock(f.s)->raise(f.order.ordinal(f.t), f.order.latest_number());
  REQUIRE(f.use(f.page, f.s));
  const StreamOrdinal gone = f.order.ordinal(f.s);
  destroy_stream(f.order, f.s.handle);
  const StreamKey fresh{f.driver.new_stream(), 0};
  REQUIRE(f.order.ordinal(fresh) == gone);
  f.use_and_free(f.page, f.t);
  REQUIRE(f.order.order_without_avoidable_wait(f.page, gone));
  REQUIRE(make_waits(f.order));
  REQUIRE(f.order.waits() == 1);
}

TEST_CASE("a free known to be complete needs no wait", "[serve][order]") {
  Fixture f;
  f.use_and_free(f.page, f.t, true);
  f.driver.finish_all_work();
  REQUIRE(f.use(f.page, f.s));
  REQUIRE(f.order.waits() == 0);
}

TEST_CASE("a poll makes few queries, and their results are kept", "[serve][order]") {
  Fixture f;
  f.use_and_free(f.page, f.t, false);
  const std::uint64_t first = f.order.latest_number();
  REQUIRE_FALSE(f.order.is_known_complete(first));
  std::uint64_t calls = f.driver.order_calls();
  f.order.poll();
  REQUIRE_FALSE(f.order.is_known_complete(first));
  REQUIRE(f.driver.order_calls() == calls);  // there is no event
  f.use_and_free(f.part, f.t, false);
  const std::uint64_t second = f.order.latest_number();
  REQUIRE(f.driver.order_calls() == calls + 1);  // this free has an event, since one was missed
  f.order.poll();
  REQUIRE(f.driver.order_calls() == calls + 2);  // which is queried
  f.use_and_free(f.part, f.t, false);
  const std::uint64_t third = f.order.latest_number();
  REQUIRE(f.driver.order_calls() == calls + 2);
  f.driver.finish_all_work();
  REQUIRE_FALSE(f.order.is_known_complete(first));
  f.order.poll();
  REQUIRE(f.order.is_known_complete(second));
  REQUIRE_FALSE(f.order.is_known_complete(third));
}

TEST_CASE("other streams are given no work and not queried, and no event is created", "[serve][order]") {
  Fixture f;
  f.use_and_free(f.page, f.t, false);
  const std::uint64_t calls = f.driver.order_calls();
  const std::size_t events = f.driver.events();
  REQUIRE_FALSE(f.use(f.page, f.s));
  REQUIRE_FALSE(f.order.is_complete(f.page));
  f.order.poll();
  f.order.poll_thoroughly();
  f.order.blocking_streams_exist();
  REQUIRE(f.driver.order_calls() == calls);
  f.use_and_free(f.part, f.t, false);
  REQUIRE(f.driver.records() == 1);
  REQUIRE(f.driver.events() == events);
  f.driver.finish_all_work();
  f.driver.work(f.t);
  REQUIRE(f.use(f.page, f.s));
  REQUIRE(f.order.waits() == 0);
}

TEST_CASE("an event covers the frees from before it was prepared, if the stream frees more meanwhile",
          "[serve][order]") {
  Fixture f;
  const StreamOrdinal t = f.order.ordinal(f.t);
  f.use_and_free({{kPage, 2 * kPage}}, f.t, false);
  const Ranges other{{2 * kPage, 3 * kPage}};
  const bool alone = GENERATE(false, true);
  const Moment moment = f.driver.work(f.t);
  Moment later;
  free_on(f.order, f.page, t, true, true, [&] {
    later = f.driver.work(f.t);
    if (!alone) free_on(f.order, other, t, false);
  });
  REQUIRE(f.use(f.page, f.s) == alone);
  REQUIRE(f.driver.is_ordered(f.s, moment) == alone);
  REQUIRE_FALSE(f.driver.is_ordered(f.s, later));
  if (alone) return;
  f.driver.finish_all_work();
  REQUIRE(f.use({{kPage, 2 * kPage}}, f.s));
  REQUIRE_FALSE(f.use(f.page, f.s));  // the next free will tell
  f.use_and_free({{kPage, 2 * kPage}}, f.t, false);
  f.driver.finish_all_work();
  REQUIRE(f.use(f.page, f.s));
  REQUIRE(f.use(other, f.s));
  REQUIRE(f.order.waits() == 0);
}

TEST_CASE("without events, bytes are refused until the program synchronizes or there are events", "[serve][order]") {
  FakeDriver driver{kPage};
  StreamOrder order{driver, FakeDriver::context(), 16 * kPage, kPage};
  const StreamKey s{driver.new_stream(), 0};
  const StreamKey t{driver.new_stream(), 0};
  const Ranges page{{0, kPage}};
  driver.work(t);
  free_on(order, page, order.ordinal(t), true);
  REQUIRE(driver.records() == 0);
  REQUIRE_FALSE(order_now(order, page, order.ordinal(s)));
  REQUIRE(order.missing_events() > 0);
  create_events(order, driver, order.missing_events());
  REQUIRE(order.missing_events() == 0);
  REQUIRE_FALSE(order_now(order, page, order.ordinal(s)));
  const Moment freed = driver.work(t);
  free_on(order, page, order.ordinal(t), false);
  REQUIRE(order_now(order, page, order.ordinal(s)));
  REQUIRE(driver.is_ordered(s, freed));
}

TEST_CASE("there are events for the full queues of the streams that the program has created", "[serve][order]") {
  constexpr std::uint64_t kFrees = 1000;
  FakeDriver driver{kPage};
  StreamOrder order{driver, FakeDriver::context(), 2 * kFrees * kPage, kPage};
  const std::size_t streams = GENERATE(1, 2, 3, 4, 5);
  order.expect_streams(streams);
  order.expect_streams(0);  // the caller does not know
  REQUIRE(order.missing_events() == 1024 * std::min<std::size_t>(streams, 4));
  create_events(order, driver, order.missing_events());
  REQUIRE(order.missing_events() == 0);
  const CUevent taken = order.take_unused_event();
  REQUIRE(order.missing_events() == 1);
  REQUIRE_FALSE(order.has_few_events());
  order.give_back_event(taken);
  REQUIRE(order.missing_events() == 0);
  const StreamKey keys[] = {{driver.new_stream(), 0}, {driver.new_stream(), 0}};
  for (const StreamKey& key : keys) driver.work(key);  // so that no event completes
  const StreamOrdinal s = order.ordinal(keys[0]);
  const StreamOrdinal t = order.ordinal(keys[1]);
  for (std::uint64_t i = 0; i < 2 * kFrees; ++i) {
    free_on(order, Ranges{{i * kPage, (i + 1) * kPage}}, i < kFrees ? s : t, true);
  }
  REQUIRE(order_now(order, Ranges{{0, kPage}}, t));
  REQUIRE(order_now(order, Ranges{{kFrees * kPage, (kFrees + 1) * kPage}}, s) == (streams > 1));
}

TEST_CASE("a stream waits for the event of the free, and for a late event only if allowed", "[serve][order]") {
  Fixture f;
  const bool event_now = GENERATE(true, false);
  const bool freed_later = GENERATE(true, false);
  const Moment freed = f.use_and_free(f.page, f.t, event_now);
  const Moment later = f.driver.work(f.t);
  if (freed_later) f.use_and_free({{kPage, 2 * kPage}}, f.t);
  REQUIRE(f.use(f.page, f.s) == event_now);
  REQUIRE(f.driver.is_ordered(f.s, freed) == event_now);
  REQUIRE_FALSE(f.driver.is_ordered(f.s, later));
  if (event_now) return;
  SECTION("known to be complete") {
    if (!freed_later) f.use_and_free({{kPage, 2 * kPage}}, f.t, false);  // has an event, since one was missed
    f.driver.finish_all_work();
    REQUIRE(f.use(f.page, f.s));
    REQUIRE(f.order.waits() == 0);
  }
  SECTION("the device has no more memory") {
    f.order.allow_late_events(true);
    REQUIRE(f.use(f.page, f.s));
    REQUIRE(f.driver.is_ordered(f.s, later));
  }
}

TEST_CASE("the number of a stream's free in a page is known, whichever stream frees there later", "[serve][order]") {
  Fixture f;
  const Moment freed = f.use_and_free({{0, 1024}}, f.t);
  f.use_and_free({{1024, 2048}}, f.s);
  const Moment later = f.use_and_free({{kPage, 2 * kPage}}, f.t);
  f.use_and_free({{2048, 4096}}, f.s);
  const StreamKey u{f.driver.new_stream(), 0};
  REQUIRE(f.use({{0, 1024}}, u));
  REQUIRE(f.driver.is_ordered(u, freed));
  REQUIRE_FALSE(f.driver.is_ordered(u, later));
}

TEST_CASE("each free has an event until it is complete, up to a limit", "[serve][order]") {
  Fixture f;
  constexpr std::uint64_t kMost = stalloc::serve::FreeEvents::kMost;
  StreamOrder order(f.driver, FakeDriver::context(), (kMost + 1) * kPage, kPage);
  create_events(order, f.driver, kEvents);
  std::vector<Moment> freed;
  const StreamOrdinal owner = order.ordinal(f.t);
  const auto page = [](std::uint64_t i) { return Ranges{{i * kPage, (i + 1) * kPage}}; };
  const bool over = GENERATE(false, true);
  for (std::uint64_t i = 0; i <= kMost; ++i) {
    freed.push_back(f.driver.work(f.t));
    free_on(order, page(i), owner, true);
    if (over && i == 9) f.driver.finish_all_work();
  }
  for (std::uint64_t i = 10; i <= kMost; i = 2 * i + 1) {
    const StreamKey user{f.driver.new_stream(), 0};
    REQUIRE(order_now(order, page(i), order.ordinal(user)));
    REQUIRE(f.driver.is_ordered(user, freed[i]));
    REQUIRE((i == kMost || !f.driver.is_ordered(user, freed[i + 1])));
  }
  REQUIRE(order_now(order, page(0), order.ordinal(f.s)) == over);  // the first event was dropped
}

TEST_CASE("with many events, the earliest that covers the free is waited for", "[serve][order]") {
  Fixture f;
  std::vector<Moment> freed;
  for (std::uint64_t i = 0; i < 15; ++i) freed.push_back(f.use_and_free({{i * kPage, (i + 1) * kPage}}, f.t, true));
  REQUIRE(f.use({{12 * kPage, 13 * kPage}}, f.s));
  REQUIRE(f.driver.is_ordered(f.s, freed[12]));
  REQUIRE_FALSE(f.driver.is_ordered(f.s, freed[13]));
  REQUIRE(f.use({{0, kPage}}, f.s));
}

TEST_CASE("two streams that share a page do not wait for each other", "[serve][order]") {
  Fixture f;
  const Ranges left{{0, 1024}};
  const Ranges right{{1024, 2048}};
  f.use_and_free(left, f.t);
  const Moment s_freed = f.use_and_free(right, f.s);
  const std::uint64_t calls = f.driver.order_calls();
  REQUIRE(f.use(left, f.t));
  REQUIRE(f.use(right, f.s));
  REQUIRE(f.driver.order_calls() == calls);
  REQUIRE(f.use({{512, 1536}}, f.t));
  REQUIRE(f.driver.is_ordered(f.t, s_freed));
}

TEST_CASE("bytes of several streams are ordered after each of them", "[serve][order]") {
  Fixture f;
  const StreamKey u{f.driver.new_stream(), 0};
  const Moment first = f.use_and_free({{0, 2 * kPage}}, f.t);
  const Moment second = f.use_and_free({{2 * kPage, 2 * kPage + 512}}, u);
  REQUIRE(f.use({{0, 3 * kPage}}, f.s));
  REQUIRE(f.driver.is_ordered(f.s, first));
  REQUIRE(f.driver.is_ordered(f.s, second));
}

TEST_CASE("bytes that a second stream still uses are reusable by their owner at once, and by others after both",
          "[serve][order]") {
  Fixture f;
  const Ranges ranges = GENERATE(Ranges{{0, kPage}}, Ranges{{512, 2048}});
  const StreamKey user{f.driver.new_stream(), 0};
  const Moment used = f.driver.work(user);
  const Moment freed = f.use_and_free(ranges, f.t, GENERATE(false, true));
  f.order.mark_also_used(ranges, f.order.ordinal(f.t), f.order.ordinal_of_user(user));
  REQUIRE_FALSE(f.order.is_complete(ranges));
  REQUIRE(f.use(ranges, f.t));
  REQUIRE_FALSE(f.order.made_foreign_ready());
  REQUIRE_FALSE(f.driver.is_ordered(f.t, used));
  REQUIRE_FALSE(f.use(ranges, f.s));  // there is no event of the user's work
  REQUIRE_FALSE(f.driver.is_ordered(f.s, freed));

  f.order.allow_late_events(true);
  SECTION("the device has no more memory") {
    REQUIRE(f.use(ranges, user));
    REQUIRE(f.driver.is_ordered(user, freed));
    REQUIRE(f.use(ranges, f.s));
    REQUIRE(f.order.made_foreign_ready());
    REQUIRE(f.driver.is_ordered(f.s, freed));
    REQUIRE(f.driver.is_ordered(f.s, used));
  }
  SECTION("both are complete") {
    f.order.poll_thoroughly();
    f.driver.finish_all_work();
    REQUIRE(f.order.is_complete(ranges));
  }
}

TEST_CASE("the event at a free with a user is the user's", "[serve][order]") {
  Fixture f;
  const StreamKey user{f.driver.new_stream(), 0};
  const StreamOrdinal owner = f.order.ordinal(f.t);
  const StreamOrdinal user_ordinal = f.order.ordinal_of_user(user);
  const Moment used = f.driver.work(user);
  auto event = f.order.prepare_event(user_ordinal);
  f.order.record(event);
  const Moment later = f.driver.work(user);
  {
    const StreamOrder::HandOver at_free(f.order, event);
    f.order.mark_freed(f.page, owner, f.order.assign_free_number(owner));
    f.order.mark_also_used(f.page, owner, user_ordinal);
  }
  f.driver.finish_work_of(f.t);
  f.order.clocks().mark_complete(owner, f.order.latest_number());
  REQUIRE(f.use(f.page, f.s));
  REQUIRE(f.driver.is_ordered(f.s, used));
  REQUIRE_FALSE(f.driver.is_ordered(f.s, later));
}

TEST_CASE("there are more pairs of streams than marks", "[serve][order]") {
  Fixture f;
  std::vector<StreamKey> users;
  std::vector<Moment> used;
  for (std::uint64_t i = 0; i < 100; ++i) {
    const Ranges ranges{{512 * i, 512 * (i + 1)}};
    users.push_back({f.driver.new_stream(), 0});
    used.push_back(f.driver.work(users.back()));
    f.use_and_free(ranges, f.t);
    f.order.mark_also_used(ranges, f.order.ordinal(f.t), f.order.ordinal_of_user(users.back()));
  }
  f.order.allow_late_events(true);  // the last bytes may have been used by all streams
  for (std::uint64_t i = 0; i < 100; ++i) {
    REQUIRE(f.use({{512 * i, 512 * (i + 1)}}, f.s));
    REQUIRE(f.driver.is_ordered(f.s, used[i]));
  }
  // The pairs of destroyed streams are assigned again.
  f.driver.finish_all_work();
  f.order.poll_thoroughly();
  for (const StreamKey& user : users) destroy_stream(f.order, user.handle);
  for (int i = 0; i < 100; ++i) f.order.ordinal({f.driver.new_stream(), 0});
  const StreamKey user{f.driver.new_stream(), 0};
  const StreamKey unrelated{f.driver.new_stream(), 0};
  f.use_and_free(f.part, unrelated);
  const Moment moment = f.use_and_free(f.page, f.t);
  f.order.mark_also_used(f.page, f.order.ordinal(f.t), f.order.ordinal_of_user(user));
  const Moment apart = f.driver.work(unrelated);
  REQUIRE(f.use(f.page, f.s));
  REQUIRE(f.driver.is_ordered(f.s, moment));
  REQUIRE_FALSE(f.driver.is_ordered(f.s, apart));
}

TEST_CASE("whichever call fails, bytes are refused or ordered", "[serve][order]") {
  const auto call = static_cast<std::uint64_t>(GENERATE(range(1, 12)));
  Fixture f;
  f.order.ordinal(f.s);
  const bool event_now = GENERATE(false, true);
  f.order.allow_late_events(!event_now);
  const Moment freed = f.use_and_free(f.page, f.t, event_now);
  f.driver.fail_at(call, CUDA_ERROR_UNKNOWN);
  const bool served = f.use(f.page, f.s);
  if (served) REQUIRE(f.driver.is_ordered(f.s, freed));
  f.driver.fail_at(0);
  REQUIRE(f.use(f.page, f.s));
  REQUIRE(f.driver.is_ordered(f.s, freed));
}

TEST_CASE("an event that could not be recorded at the free is recorded when needed", "[serve][order]") {
  Fixture f;
  f.order.allow_late_events(true);
  f.order.ordinal(f.t);
  for (std::uint64_t call = 1; call <= 4; ++call) {
    const Moment moment = f.driver.work(f.t);
    const StreamOrdinal t = f.order.ordinal(f.t);
    f.driver.fail_at(call, CUDA_ERROR_UNKNOWN);
    free_on(f.order, f.page, t, true);
    f.driver.fail_at(0);
    REQUIRE(f.use(f.page, f.s));
    REQUIRE(f.driver.is_ordered(f.s, moment));
  }
}

TEST_CASE("no event is recorded on a captured stream, and its bytes are not served to others", "[serve][order]") {
  Fixture f;
  f.order.allow_late_events(true);
  f.use_and_free(f.page, f.t, false);
  f.driver.set_capturing(f.t.handle, true);
  REQUIRE_FALSE(f.use(f.page, f.s));
  f.driver.set_capturing(f.t.handle, false);
  REQUIRE(f.use(f.page, f.s));
}

TEST_CASE("a stream waits for the free of its bytes, and not for a later one in the same page", "[serve][order]") {
  Fixture f;
  const Ranges first{{0, kPage + 512}};
  const Moment freed = f.use_and_free(first, f.t);
  const Moment later = f.use_and_free({{kPage + 512, 2 * kPage}}, f.t);
  REQUIRE(f.use(first, f.s));
  REQUIRE(f.driver.is_ordered(f.s, freed));
  REQUIRE_FALSE(f.driver.is_ordered(f.s, later));
}

TEST_CASE("bytes that were never freed need no wait, whatever was freed next to them", "[serve][order]") {
  Fixture f;
  const Moment freed = f.use_and_free({{0, 512}}, f.t);
  REQUIRE(f.use({{512, kPage}}, f.s));
  REQUIRE_FALSE(f.driver.is_ordered(f.s, freed));
  REQUIRE(f.order.waits() == 0);
}

TEST_CASE("a stream makes no wait if it cannot get all of the bytes", "[serve][order]") {
  Fixture f;
  const StreamKey u{f.driver.new_stream(), 0};
  const Moment freed = f.use_and_free({{0, kPage}}, f.t);
  f.use_and_free({{kPage, 2 * kPage}}, u, false);  // without an event
  REQUIRE_FALSE(f.use({{0, 2 * kPage}}, f.s));
  REQUIRE_FALSE(f.driver.is_ordered(f.s, freed));
  REQUIRE(f.order.waits() == 0);
}

TEST_CASE("the work of a user is still waited for when the owner has freed the bytes again", "[serve][order]") {
  Fixture f;
  const StreamKey user{f.driver.new_stream(), 0};
  const StreamKey other{f.driver.new_stream(), 0};
  f.driver.work(user);
  f.use_and_free(f.page, f.t);
  f.order.mark_also_used(f.page, f.order.ordinal(f.t), f.order.ordinal_of_user(user));
  REQUIRE(f.use(f.page, f.t));  // at once
  f.use_and_free(f.page, f.t);
  if (GENERATE(false, true)) f.order.mark_also_used(f.page, f.order.ordinal(f.t), f.order.ordinal_of_user(other));
  f.driver.finish_work_of(f.t);
  REQUIRE_FALSE(f.use(f.page, f.s));
  f.driver.finish_all_work();
  f.order.allow_late_events(true);
  f.order.poll_thoroughly();
  REQUIRE(f.use(f.page, f.s));
}

TEST_CASE("the work of two users of parts is still waited for when the owner frees the whole beside one of them",
          "[serve][order]") {
  Fixture f;
  const Ranges first{{0, 1024}};
  const Ranges second{{1024, 2048}};
  const Ranges whole{{0, 2048}};
  const StreamKey user{f.driver.new_stream(), 0};
  const StreamKey other{f.driver.new_stream(), 0};
  const Moment used = f.driver.work(user);
  const auto free_beside = [&](const Ranges& ranges, StreamKey key) {
    f.use_and_free(ranges, f.t);
    f.order.mark_also_used(ranges, f.order.ordinal(f.t), f.order.ordinal_of_user(key));
  };
  free_beside(first, user);
  free_beside(second, other);
  REQUIRE(f.use(whole, f.t));  // at once
  free_beside(whole, other);
  f.order.allow_late_events(true);
  REQUIRE(f.use(whole, f.s));
  REQUIRE(f.driver.is_ordered(f.s, used));
}

TEST_CASE("the work of a user is still waited for when a later free was not the owner's", "[serve][order]") {
  Fixture f;
  const Ranges ranges = GENERATE(Ranges{{0, kPage}}, Ranges{{512, 2048}});
  const StreamKey user{f.driver.new_stream(), 0};
  const Moment used = f.driver.work(user);
  f.use_and_free(ranges, f.t);
  f.order.mark_also_used(ranges, f.order.ordinal(f.t), f.order.ordinal_of_user(user));
  REQUIRE(f.use(ranges, f.t));  // at once
  const bool complete = GENERATE(false, true);
  if (complete) {
    f.driver.finish_work_of(f.t);
    f.order.mark_complete(ranges);
    REQUIRE_FALSE(f.order.is_complete(ranges));
    REQUIRE(f.use(ranges, f.t));
  } else {
    f.use_and_free(ranges, f.s);
  }
  f.order.allow_late_events(true);
  REQUIRE(f.use(ranges, f.s));
  REQUIRE(f.driver.is_ordered(f.s, used));
  f.driver.finish_all_work();
  f.order.poll_thoroughly();
  f.order.mark_complete(ranges);
  REQUIRE(f.order.is_complete(ranges));
}

TEST_CASE("the work of a destroyed stream is still waited for", "[serve][order]") {
  Fixture f;
  const Moment freed = f.use_and_free(f.page, f.t);
  destroy_stream(f.order, f.t.handle);
  f.driver.destroy_stream(f.t.handle);
  const StreamKey reused{f.driver.new_stream(), 0};
  REQUIRE(reused == f.t);
  REQUIRE(f.use(f.page, reused));
  REQUIRE(f.driver.is_ordered(reused, freed));
}

TEST_CASE("an event is recorded at each free of a blocking stream, which follows the legacy stream", "[serve][order]") {
  Fixture f;
  const StreamKey blocking{f.driver.new_stream(FakeDriver::context(), CU_STREAM_DEFAULT), 0};
  const Moment freed = f.use_and_free(f.page, blocking, false);
  f.driver.work(blocking);
  REQUIRE(f.use(f.page, f.s));
  REQUIRE(f.driver.is_ordered(f.s, freed));
}

TEST_CASE("a destroyed blocking stream without work may have freed what the legacy stream uses", "[serve][order]") {
  Fixture f;
  const unsigned flags = GENERATE(CU_STREAM_DEFAULT, CU_STREAM_NON_BLOCKING);
  const StreamKey gone{f.driver.new_stream(FakeDriver::context(), flags), 0};
  f.use_and_free(f.page, gone, false);
  f.driver.finish_all_work();
  destroy_stream(f.order, gone.handle);
  const std::uint64_t calls = f.driver.order_calls();
  REQUIRE(f.order.is_complete(f.page));
  // What was known from the stream alone is known without the query of an event.
  CHECK((f.driver.order_calls() > calls) == (flags == CU_STREAM_DEFAULT));
}

TEST_CASE("a free that names a stream which can be given no event gets no number", "[serve][order]") {
  Fixture f;
  const bool destroyed = GENERATE(true, false);
  StreamKey gone{f.driver.new_stream(), 0};
  StreamOrdinal ordinal = kNoStream;
  if (destroyed) {
    ordinal = f.order.ordinal(gone);
    f.use_and_free(f.part, f.t);
    f.driver.work(gone);
    destroy_stream(f.order, gone.handle);
    f.driver.destroy_stream(gone.handle);
  } else {
    std::thread([&] { ordinal = f.order.ordinal(make_stream_key(nullptr, true)); }).join();
    f.use_and_free(f.part, f.t);
  }
  free_on(f.order, f.part, ordinal, false);
  REQUIRE_FALSE(f.order.is_complete(f.part));  // the work from before the bytes were allocated is not complete
  f.driver.finish_all_work();
  REQUIRE(f.order.is_complete(f.part));
}

TEST_CASE("bytes of a destroyed stream without an event are refused until all work is complete", "[serve][order]") {
  Fixture f;
  f.order.allow_late_events(true);
  f.use_and_free(f.page, f.t, false);
  f.driver.fail_at(GENERATE(1, 2), CUDA_ERROR_UNKNOWN, 100);
  destroy_stream(f.order, f.t.handle);
  f.driver.fail_at(0);
  f.driver.destroy_stream(f.t.handle);
  REQUIRE_FALSE(f.use(f.page, f.s));
  const std::uint64_t number = f.order.take_number();
  f.driver.synchronize_context();
  f.order.mark_all_complete(number);
  REQUIRE(f.use(f.page, f.s));
}

TEST_CASE("on a thread's own stream events are recorded at frees, since others cannot name it", "[serve][order]") {
  Fixture f;
  Moment freed;
  std::thread([&] {
    const StreamKey own = make_stream_key(nullptr, true);
    freed = f.use_and_free(f.page, own);
  }).join();
  const StreamKey mine = make_stream_key(nullptr, true);
  REQUIRE(f.use(f.page, mine));
  REQUIRE(f.driver.is_ordered(mine, freed));
}

TEST_CASE("bytes of a thread's own stream without an event are refused", "[serve][order]") {
  Fixture f;
  std::thread([&] {
    const StreamKey own = make_stream_key(nullptr, true);
    const StreamOrdinal ordinal = f.order.ordinal(own);
    f.driver.work(own);
    f.driver.fail_at(3, CUDA_ERROR_UNKNOWN);
    free_on(f.order, f.page, ordinal, false);
    f.driver.fail_at(0);
  }).join();
  REQUIRE_FALSE(f.use(f.page, f.s));
}

TEST_CASE("bytes for every stream at once need complete frees", "[serve][order]") {
  Fixture f;
  REQUIRE(f.order.is_complete(f.page));
  f.use_and_free(f.page, f.t);
  REQUIRE_FALSE(f.order.is_complete(f.page));
  f.driver.finish_all_work();
  REQUIRE(f.order.is_complete(f.page));
}

TEST_CASE("a stream of another context has no ordinal", "[serve][order]") {
  Fixture f;
  REQUIRE(f.order.ordinal({f.driver.new_stream(FakeDriver::other_context()), 0}) == kNoStream);
  const StreamKey legacy = make_stream_key(nullptr, false);
  REQUIRE(f.order.ordinal(legacy) != kNoStream);
  f.driver.push_context(FakeDriver::other_context());
  REQUIRE(f.order.ordinal(legacy) == kNoStream);
  f.driver.pop_context();
  REQUIRE(f.order.ordinal(legacy) != kNoStream);
}

TEST_CASE("more streams than ordinals: those of idle streams are assigned again, those of busy ones are not",
          "[serve][order]") {
  Fixture f;
  const Moment first = f.use_and_free(f.page, f.t);
  for (int i = 1; i < kMaxStreams; ++i) {
    const StreamKey key{f.driver.new_stream(), 0};
    f.use_and_free({{kPage, 2 * kPage}}, key);
  }
  REQUIRE(f.order.ordinal(f.s) == kNoStream);
  f.driver.finish_all_work();
  REQUIRE(f.order.ordinal(f.s) != kNoStream);
  REQUIRE(f.use(f.page, f.s));
  REQUIRE(f.driver.is_ordered(f.s, first));
  // A stream that lost its ordinal gets another.
  const Moment again = f.use_and_free(f.page, f.t);
  REQUIRE(f.use(f.page, f.s));
  REQUIRE(f.driver.is_ordered(f.s, again));
}

TEST_CASE("the end of a stream is not that of another one that has got its ordinal meanwhile", "[serve][order]") {
  Fixture f;
  std::vector<StreamKey> keys;
  for (int i = 0; i < kMaxStreams; ++i) {
    keys.push_back({f.driver.new_stream(), 0});
    f.use_and_free(f.page, keys.back());
  }
  const StreamKey ending = keys[stalloc::serve::StreamClock::kStreams];  // the first one without a clock
  const auto event = f.order.prepare_destruction(ending.handle);
  REQUIRE(event);
  f.driver.finish_all_work();
  const StreamOrdinal ordinal = f.order.ordinal(f.s);
  REQUIRE(ordinal == event->stream);
  f.order.stream_destroyed(*event);
  REQUIRE(f.order.ordinal(f.s) == ordinal);
}

TEST_CASE("a stream does not inherit the waits of the last owner of its ordinal", "[serve][order]") {
  Fixture f;
  const Moment freed = f.use_and_free(f.page, f.t);
  REQUIRE(f.use(f.page, f.s));
  destroy_stream(f.order, f.s.handle);
  f.driver.destroy_stream(f.s.handle);
  for (int i = 2; i < kMaxStreams; ++i) f.order.ordinal({f.driver.new_stream(), 0});
  const StreamKey late{f.driver.new_stream(), 0};
  REQUIRE(f.use(f.page, late));
  REQUIRE(f.driver.is_ordered(late, freed));
}

TEST_CASE("creating and destroying streams does not use up the ordinals", "[serve][order]") {
  Fixture f;
  for (int i = 0; i < 3 * kMaxStreams; ++i) {
    const StreamKey key{f.driver.new_stream(), 0};
    REQUIRE(f.use(f.page, key));
    const Moment moment = f.use_and_free(f.page, key);
    if (i % 100 == 0) f.driver.finish_all_work();
    destroy_stream(f.order, key.handle);
    f.driver.destroy_stream(key.handle);
    REQUIRE(f.use(f.page, f.s));
    REQUIRE(f.driver.is_ordered(f.s, moment));
    f.use_and_free(f.page, f.s);
  }
}

TEST_CASE("on a legacy stream with blocking streams, events are recorded at some frees, and late ones only while idle",
          "[serve][order]") {
  Fixture f;
  const StreamKey legacy = make_stream_key(nullptr, false);
  const StreamOrdinal ordinal = f.order.ordinal(legacy);
  const bool exist = GENERATE(false, true);
  const bool by_thread = GENERATE(false, true);
  if (exist && by_thread) {
    f.order.ordinal(make_stream_key(nullptr, true));  // a thread's own stream is a blocking one
  } else if (exist) {
    f.order.blocking_streams_exist();
  }
  const auto free_one = [&] {
    const Moment moment = f.driver.work(legacy);
    free_on(f.order, f.page, ordinal, false);
    return moment;
  };
  SECTION("at some frees") {
    const std::uint64_t calls = f.driver.order_calls();
    for (int i = 0; i < 200; ++i) free_one();
    REQUIRE(f.driver.order_calls() == calls + (exist ? 3 : 0));
  }
  SECTION("while it is idle") {
    const Moment freed = free_one();
    f.driver.work(legacy);
    f.order.poll();
    f.order.allow_late_events(true);
    REQUIRE(f.use(f.page, f.s) == !exist);
    REQUIRE(f.driver.is_ordered(f.s, freed) == !exist);
    f.driver.finish_all_work();
    f.driver.set_capturing(CU_STREAM_LEGACY, true);
    REQUIRE(f.use(f.page, f.t) == !exist);
    f.driver.set_capturing(CU_STREAM_LEGACY, false);
    REQUIRE(f.use(f.page, f.t));
    REQUIRE(f.order.waits() == (exist ? 0 : 1));
  }
}
