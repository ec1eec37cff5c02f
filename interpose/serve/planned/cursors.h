// SPDX-License-Identifier: Apache-2.0
// Which slot of the plan the next request takes, for all threads of a program.
#pragma once

#include <cstdint>
#include <vector>

#include "interpose/serve/planned/cursor.h"
#include "interpose/serve/planned/plan_match.h"
#include "interpose/serve/streams/thread_id.h"
#include "plan/plan.h"

namespace stalloc::serve {

// One cursor for all requests, or where the plan has lanes one for each, moved by the requests of one thread.
//
// A thread takes the lane that awaits its request: at the next slot, or at the body's first. A lane can be taken that
// no thread has, or one that is gone or has lost its place. Requests of a thread without a lane go unplanned and move
// no cursor. A wrong guess costs unplanned requests, never more. Not thread-safe.
class Cursors {
 public:
  using HasEnded = bool (*)(ThreadId) noexcept;

  // Throws std::bad_alloc.
  explicit Cursors(const plan::DevicePlan& plan, HasEnded has_ended = serve::has_ended);

  // As of Cursor, for a request of the calling thread.
  Cursor::Next next(std::uint64_t bytes) noexcept {
    return lanes_.empty() ? all_.next(bytes) : next_of(this_thread(), bytes);
  }
  void pass_through(std::uint64_t bytes) noexcept;
  // As of Cursor. Where there are lanes the first does nothing, and the second is false.
  void keep_place() noexcept { all_.keep_place(); }
  [[nodiscard]] bool is_before_body() const noexcept { return lanes_.empty() && all_.is_before_body(); }
  [[nodiscard]] bool fits() const noexcept { return lanes_.empty() ? all_.fits() : match_.fits(); }
  [[nodiscard]] std::uint64_t resynchronisations() const noexcept;
  // As of Cursor; where there are lanes of the first that has one, which counts its own requests only.
  [[nodiscard]] std::optional<Cursor::Difference> first_difference() const noexcept;

  // Where there are lanes.
  Cursor::Next next_of(ThreadId thread, std::uint64_t bytes) noexcept;

 private:
  struct LaneCursor {
    Cursor cursor;
    std::vector<std::uint32_t> slots;  // of the plan, by the cursor's
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
