// SPDX-License-Identifier: Apache-2.0
// Threads find the lanes of a plan and keep them.
#include "interpose/serve/planned/cursors.h"

#include <pthread.h>

#include <latch>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "catch.h"
#include "plans.h"
#include "tests/unit/seeds.h"

using namespace stalloc;
using namespace stalloc::test;
using serve::Cursor;
using serve::Cursors;
using serve::ThreadId;
using Answer = Cursor::Answer;

namespace {

constexpr int kNone = -1;

struct LaneSlot {
  std::uint8_t lane;
  std::uint64_t units;
};

plan::DevicePlan plan_of(const std::vector<LaneSlot>& slots, std::uint32_t prologue, std::uint32_t body) {
  plan::DevicePlan plan;
  for (const LaneSlot& slot : slots) {
    add_slot(&plan, slot.units * plan::kUnitBytes, 0);
    plan.lanes.push_back(slot.lane);
  }
  plan.prologue = prologue;
  plan.body = body;
  return plan;
}

std::set<ThreadId> ended;
bool has_ended(ThreadId thread) noexcept { return ended.count(thread) != 0; }

int request(Cursors& cursors, ThreadId thread, std::uint64_t units) {
  const Cursor::Next step = cursors.next_of(thread, units * plan::kUnitBytes);
  return step.answer == Answer::Serve ? static_cast<int>(step.slot) : kNone;
}

// Lane 0: 10 | 1 2 3 | 4, lane 1: | 7 8 | 9.
plan::DevicePlan two_lanes() {
  return plan_of({{0, 10}, {0, 1}, {1, 7}, {0, 2}, {1, 8}, {0, 3}, {0, 4}, {1, 9}}, 1, 5);
}

// A body of `count` random slots, most of them in lane 0.
plan::DevicePlan random_lanes(std::size_t count, std::uint64_t kinds, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<LaneSlot> slots;
  for (std::size_t i = 0; i < count; ++i) {
    const auto lane = static_cast<std::uint8_t>(random() % 3 == 0 ? 1 : 0);
    slots.push_back({lane, 1 + random() % kinds + 100 * lane});
  }
  return plan_of(slots, 0, static_cast<std::uint32_t>(count));
}

// The requests of one thread, which repeats its lane.
class Walker {
 public:
  Walker(const plan::DevicePlan& plan, std::uint8_t lane, ThreadId thread) : plan_(plan), thread_(thread) {
    for (std::size_t slot = 0; slot < plan.slots.size(); ++slot) {
      if (plan.lanes[slot] == lane) slots_.push_back(slot);
    }
  }
  // False if the request was not served at its slot.
  bool step(Cursors& cursors) {
    const std::size_t slot = slots_[at_++ % slots_.size()];
    return request(cursors, thread_, plan_.slots[slot].size / plan::kUnitBytes) == static_cast<int>(slot);
  }
  [[nodiscard]] std::size_t length() const { return slots_.size(); }
  void become(ThreadId thread) { thread_ = thread; }

 private:
  const plan::DevicePlan& plan_;
  ThreadId thread_;
  std::vector<std::size_t> slots_;
  std::size_t at_ = 0;
};

}  // namespace

TEST_CASE("each thread follows its own lane, whichever comes first", "[serve][cursors]") {
  Cursors cursors(two_lanes(), has_ended);
  CHECK(request(cursors, 5, 10) == 0);
  for (int repetition = 0; repetition < 3; ++repetition) {
    if (repetition == 1) CHECK(request(cursors, 6, 7) == 2);
    CHECK(request(cursors, 5, 1) == 1);
    if (repetition != 1) CHECK(request(cursors, 6, 7) == 2);
    CHECK(request(cursors, 5, 2) == 3);
    if (repetition == 2) CHECK(request(cursors, 6, 8) == 4);
    CHECK(request(cursors, 5, 3) == 5);
    if (repetition != 2) CHECK(request(cursors, 6, 8) == 4);
  }
  CHECK(request(cursors, 6, 9) == 7);
  CHECK(request(cursors, 5, 4) == 6);
  CHECK(cursors.resynchronizations() == 0);
}

TEST_CASE("any interleaving of threads finds every slot", "[serve][cursors]") {
  const std::uint64_t seed = GENERATE(from_range(seeds(20)));
  const plan::DevicePlan plan = random_lanes(60, 10, seed);
  Cursors cursors(plan, has_ended);
  Walker first(plan, 0, 1);
  Walker second(plan, 1, 2);
  std::mt19937_64 random(seed);
  for (int i = 0; i < 5000; ++i) {
    Walker& next = random() % 3 == 0 ? second : first;
    if (!next.step(cursors)) FAIL("request " << i << " found another slot");
  }
  CHECK(cursors.fits());
}

TEST_CASE("a thread without a lane does not disturb others", "[serve][cursors]") {
  const plan::DevicePlan plan = random_lanes(60, 10, 7);
  Cursors cursors(plan, has_ended);
  Walker first(plan, 0, 1);
  Walker second(plan, 1, 2);
  std::mt19937_64 random(7);
  REQUIRE(first.step(cursors));
  REQUIRE(second.step(cursors));
  for (int i = 0; i < 5000; ++i) {
    if (request(cursors, 3, 1 + random() % 110) != kNone) FAIL("a stranger was served");
    if (!(random() % 2 == 0 ? first : second).step(cursors)) FAIL("request " << i << " found another slot");
  }
}

TEST_CASE("threads that have taken each other's lanes find their own", "[serve][cursors]") {
  const std::uint64_t seed = GENERATE(from_range(seeds(10)));
  plan::DevicePlan plan = random_lanes(60, 10, seed);
  std::size_t begin = 0;
  while (plan.lanes[begin] != 1) ++begin;
  // Both lanes begin with the same sizes, and the thread of the second lane comes first.
  for (std::size_t slot = 0;; ++slot) {
    if (plan.lanes[slot] != 0) continue;
    plan.slots[slot].size = plan.slots[begin].size;
    break;
  }
  Cursors cursors(plan, has_ended);
  Walker first(plan, 0, 1);
  Walker second(plan, 1, 2);
  std::mt19937_64 random(seed);
  CHECK_FALSE(second.step(cursors));
  for (int i = 0; i < 1000; ++i) (random() % 3 == 0 ? second : first).step(cursors);
  for (int i = 0; i < 1000; ++i) {
    if (!(random() % 3 == 0 ? second : first).step(cursors)) FAIL("request " << i << " found another slot");
  }
}

TEST_CASE("a new thread takes the lane of a thread that has ended", "[serve][cursors]") {
  const plan::DevicePlan plan = random_lanes(60, 10, 3);
  Cursors cursors(plan, has_ended);
  Walker first(plan, 0, 1);
  Walker second(plan, 1, 2);
  for (int step = 0; step < 20; ++step) {
    for (std::size_t i = 0; i < first.length(); ++i) CHECK(first.step(cursors));
    for (std::size_t i = 0; i < second.length(); ++i) CHECK(second.step(cursors));
    ended.insert(2 + step);
    second.become(3 + step);
  }
  ended.clear();
  CHECK_FALSE(second.step(cursors));  // the thread before it still exists
}

TEST_CASE("a thread that comes late finds the body", "[serve][cursors]") {
  const plan::DevicePlan plan = two_lanes();
  Cursors cursors(plan, has_ended);
  for (int i = 0; i < 2; ++i) CHECK(request(cursors, 1, 2) == kNone);
  CHECK(request(cursors, 1, 3) == kNone);
  CHECK(request(cursors, 1, 1) == 1);
  CHECK(request(cursors, 1, 2) == 3);
}

TEST_CASE("a thread that deviates for long returns to its lane", "[serve][cursors]") {
  const plan::DevicePlan plan = random_lanes(60, 10, 4);
  Cursors cursors(plan, has_ended);
  Walker first(plan, 0, 1);
  Walker second(plan, 1, 2);
  std::mt19937_64 random(4);
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 500; ++i) request(cursors, 1, 1 + random() % 210);  // an evaluation
    for (int i = 0; i < 500; ++i) (random() % 3 == 0 ? second : first).step(cursors);
    for (int i = 0; i < 500; ++i) {
      if (!(random() % 3 == 0 ? second : first).step(cursors)) FAIL("request " << i << " found another slot");
    }
  }
}

TEST_CASE("a lane with pass-through slots and slots of varying size", "[serve][cursors]") {
  plan::DevicePlan plan = two_lanes();
  plan.slots[3].kind = plan.slots[4].kind = plan::SlotKind::PassThrough;
  plan.varying = {4};
  Cursors cursors(plan, has_ended);
  CHECK(request(cursors, 1, 10) == 0);
  CHECK(request(cursors, 1, 1) == 1);
  CHECK(request(cursors, 2, 7) == 2);
  CHECK(cursors.next_of(1, 2 * plan::kUnitBytes).answer == Answer::Original);
  CHECK(cursors.next_of(2, 3 * plan::kUnitBytes).answer == Answer::Unplanned);
  CHECK(request(cursors, 1, 3) == 5);
  CHECK(request(cursors, 2, 7) == 2);
  plan.unplaced = {3};
  Cursors others(plan, has_ended);
  CHECK(request(others, 1, 10) == 0);
  CHECK(request(others, 1, 1) == 1);
  CHECK(others.next_of(1, 2 * plan::kUnitBytes).answer == Answer::Unplanned);
  CHECK(request(others, 1, 3) == 5);
}

TEST_CASE("a plan of another program is detected although no thread finds a lane", "[serve][cursors]") {
  Cursors cursors(two_lanes(), has_ended);
  for (int i = 0; i < 999; ++i) request(cursors, 1 + i % 2, 50);
  CHECK(cursors.fits());
  request(cursors, 1, 50);
  CHECK_FALSE(cursors.fits());
}

TEST_CASE("without lanes, all threads move one cursor", "[serve][cursors]") {
  plan::DevicePlan plan = two_lanes();
  plan.lanes.clear();
  Cursors cursors(plan);
  std::vector<int> slots;
  for (const std::uint64_t units : {10, 1, 7}) {
    std::thread([&] {
      const Cursor::Next step = cursors.next(units * plan::kUnitBytes);
      slots.push_back(step.answer == Answer::Serve ? static_cast<int>(step.slot) : kNone);
    }).join();
  }
  CHECK(slots == std::vector<int>{0, 1, 2});
}

TEST_CASE("a request of a thread without an id takes no lane", "[serve][cursors]") {
  Cursors cursors(two_lanes(), has_ended);
  CHECK(request(cursors, 0, 7) == kNone);
  CHECK(request(cursors, 6, 7) == 2);
  CHECK(request(cursors, 0, 8) == kNone);
  CHECK(request(cursors, 6, 8) == 4);
}

TEST_CASE("the lane of a joined thread is free at once", "[serve][cursors]") {
  Cursors cursors(two_lanes());
  for (int i = 0; i < 200; ++i) {
    int slot = kNone;
    std::thread([&] { slot = request(cursors, serve::this_thread(), i % 2 == 0 ? 7 : 8); }).join();
    if (slot != (i % 2 == 0 ? 2 : 4)) FAIL("thread " << i << " has found slot " << slot);
  }
}

TEST_CASE("threads have different ids, and it is known when they have ended", "[serve][cursors]") {
  const ThreadId own = serve::this_thread();
  REQUIRE(own != 0);
  std::set<ThreadId> ids{own};
  for (int i = 0; i < 2000; ++i) {  // more than can exist at one time; the system reuses its ids
    ThreadId other = 0;
    bool was_gone = true;
    std::thread([&] {
      other = serve::this_thread();
      was_gone = serve::has_ended(other) || serve::has_ended(own);
    }).join();
    if (other == 0 || was_gone || !serve::has_ended(other) || !ids.insert(other).second) FAIL("thread " << i);
  }
  CHECK(serve::this_thread() == own);
  CHECK_FALSE(serve::has_ended(own));
}

TEST_CASE("a thread has an id while its destructors run", "[serve][cursors]") {
  static std::latch ending(1);
  static std::latch seen(1);
  static std::vector<bool> ended_in_destructor;
  struct Variable {
    ThreadId id = 0;
    ~Variable() { ended_in_destructor.push_back(serve::this_thread() != id || serve::has_ended(id)); }
  };
  REQUIRE(serve::this_thread() != 0);
  pthread_key_t key = 0;  // its destructor runs after those that were created before
  REQUIRE(pthread_key_create(&key, [](void* id) {
            const ThreadId own = *static_cast<ThreadId*>(id);
            ended_in_destructor.push_back(serve::this_thread() != own || serve::has_ended(own));
            ending.count_down();
            seen.wait();
          }) == 0);
  Cursors cursors(two_lanes());
  ThreadId id = 0;
  int slot = kNone;
  std::thread thread([&] {
    thread_local Variable variable;
    variable.id = id = serve::this_thread();
    slot = request(cursors, id, 7);
    pthread_setspecific(key, &id);
  });
  ending.wait();
  CHECK(slot == 2);
  CHECK(serve::has_ended(id));  // although the system still has the thread
  CHECK(request(cursors, serve::this_thread(), 8) == 4);
  seen.count_down();
  thread.join();
  CHECK(ended_in_destructor == std::vector<bool>{false, true});
  pthread_key_delete(key);
}
