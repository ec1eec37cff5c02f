// SPDX-License-Identifier: Apache-2.0
// Which slot of the plan the next request takes, for all threads of a program.
#pragma once

#include <cstdint>
#include <vector>

#include "interpose/serve/streams/thread_id.h"
#include "plan/follow/cursor.h"
#include "plan/follow/plan_match.h"
#include "plan/plan.h"

namespace stalloc::serve {

using plan::Cursor;
using plan::PlanMatch;

// One cursor for all requests. If the plan has lanes, one cursor for each lane, which the requests of one thread move.
//
// A thread takes a lane whose next slot, or the first slot of whose body, matches its request. A lane can be taken if
// no thread has it, or if its thread has ended or its cursor has lost its position. Requests of a thread without a
// lane, and of one without an id, are unplanned and move no cursor. A wrong choice only costs unplanned requests. Not
// thread-safe: the heap's lock protects it. Only the constructor throws.
class Cursors {
 public:
  using HasEnded = bool (*)(ThreadId) noexcept;

  // `has_ended` is replaced by tests. Throws std::bad_alloc.
  explicit Cursors(const plan::DevicePlan& plan, HasEnded has_ended = serve::has_ended);

  // As for Cursor, for a request of the calling thread.
  Cursor::Next next(std::uint64_t bytes) noexcept {
    return lanes_.empty() ? all_.next(bytes) : next_of(this_thread(), bytes);
  }
  void pass_through(std::uint64_t bytes) noexcept;
  // As for Cursor. If the plan has lanes, `keep_place` has no effect and `is_before_body` returns false.
  void keep_place() noexcept { all_.keep_place(); }
  [[nodiscard]] bool is_before_body() const noexcept { return lanes_.empty() && all_.is_before_body(); }
  [[nodiscard]] bool fits() const noexcept { return lanes_.empty() ? all_.fits() : match_.fits(); }
  [[nodiscard]] std::uint64_t resynchronizations() const noexcept;
  // As for Cursor. If the plan has lanes, returns the difference of the first lane that has one; its request number
  // counts the requests of that lane.
  [[nodiscard]] std::optional<Cursor::Difference> first_difference() const noexcept;

  // `next` for a plan with lanes and a given thread; 0: it has no id.
  Cursor::Next next_of(ThreadId thread, std::uint64_t bytes) noexcept;

 private:
  struct LaneCursor {
    Cursor cursor;
    std::vector<std::uint32_t> slots;  // the plan's index of each slot of the cursor
    ThreadId thread = 0;               // the thread that has the lane; 0: none
  };

  LaneCursor* lane_of(ThreadId thread) noexcept;
  LaneCursor* find_lane(std::uint64_t bytes, const LaneCursor* own) noexcept;

  Cursor all_;
  std::vector<LaneCursor> lanes_;
  PlanMatch match_;
  HasEnded has_ended_;
};

}  // namespace stalloc::serve
