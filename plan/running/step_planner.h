// SPDX-License-Identifier: Apache-2.0
// Finds the step that a running program repeats, and plans its memory.
//
// A program without a plan whose steps find other places each time maps memory in every step: pipelines with several
// microbatches in flight, for example. Once its requests repeat, they can be planned as those of a recorded run are
// (STAlloc), but without a recording.
//
//   1. The requests are logged, with their frees. After the first two thousand of them, and again whenever there are a
//      quarter more, the end of the log is searched for a step that repeats (repetition.h), if memory was mapped since
//      the last search: a program that maps nothing gains nothing.
//   2. The step must repeat until there are half as many requests more, since loops inside a first step repeat, too. If
//      memory was still mapped in its latest repetition, the latest four are planned (planner.h).
//   3. Taking up a plan maps memory, too. So once the program has mapped as many handles since the step was found, the
//      plan is offered at the beginning of each further step, as long as the requests follow it. If it can, a step
//      begins where the program has just waited for its work, since only then is idle memory known to be idle.
//
// Planning is done while the heap is locked, so the search for places is limited (PlanOptions::most_examined): a step
// that needs more is not planned. After each plan that could not be made, for which the backend refused memory, that
// the program left before it was taken up, or that was offered many times and not taken up, the first search comes
// after twice as many requests as before, so that planning never takes much of a program's time.
//
// A program that has mapped nothing for many steps is not logged until it maps memory again. Only large requests count:
// small ones have memory of their own (online/handle_placement.h), and are not planned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "plan/online/mapped_memory.h"
#include "plan/online/online_policy.h"
#include "plan/plan.h"
#include "plan/running/request_log.h"

namespace stalloc::plan {

// Deterministic: the plan depends only on the requests, and on when memory was mapped. Not thread-safe. Throws
// std::bad_alloc.
class StepPlanner {
 public:
  // `page`: the device's granularity, bytes.
  StepPlanner(std::uint64_t page, const OnlinePolicy& policy);

  // The program makes its next request; as for RequestLog::add. `counts` says what has been mapped so far. Now and then
  // it searches and plans, which takes some hundredths of a second, or tenths if a step has thousands of requests.
  void requested(std::uint64_t number, std::uint64_t bytes, StreamIndex stream, const OnlineCounts& counts) {
    const std::uint64_t mapped = counts.handles + counts.mapped;
    if (sleeps_ && mapped == mapped_at_search_) return;
    sleeps_ = false;
    log_.add(number, bytes, stream);
    if (step_ || log_.size() >= next_search_) advance(mapped);
  }
  // As for RequestLog.
  void freed(std::uint64_t number, StreamIndex stream) {
    if (!sleeps_) log_.freed(number, stream);
  }
  // All frees so far are known to be complete when the next request is made, as after a synchronization.
  void settled() {
    if (!sleeps_) log_.note_settled();
  }
  // True when there is a plan which the latest requests followed, and the latest one begins its body.
  [[nodiscard]] bool offers() const noexcept { return offers_; }
  // True as long as there is a plan that may be offered.
  [[nodiscard]] bool has_plan() const noexcept { return step_ && step_->plan; }
  // The plan: only the slots of its body, which begins with the latest request. Pre: `offers`.
  [[nodiscard]] const DevicePlan& plan() const noexcept { return *step_->plan; }
  // Forgets the requests and the step, as when the program's memory was given back.
  void restart() noexcept;
  // The plan that it offers cannot be taken up. It begins anew, as after one that could not be made.
  void give_up() noexcept;
  // How many plans could not be made, or were not taken up.
  [[nodiscard]] std::size_t useless_plans() const noexcept { return useless_; }

 private:
  static constexpr std::size_t kFirstSearch = 2048;  // requests before the first search

  // A step that repeats. Requests are named by their indices in the log.
  struct Step {
    std::size_t period = 0;  // requests
    std::size_t begin = 0;   // of the present repetition, or the next one
    std::size_t until = 0;   // it must repeat as long as this
    std::size_t repetitions = 0;
    std::size_t mismatches = 0;         // requests of this repetition that are not of the expected sizes
    std::uint64_t mapped = 0;           // handles mapped at the beginning of the repetition
    std::uint64_t mapped_at_first = 0;  // handles mapped when the step was found
    std::optional<DevicePlan> plan{};   // its body is one repetition
    std::size_t offers = 0;             // of the plan
    std::size_t quiet = 0;              // the latest repetitions in which nothing was mapped
  };

  void advance(std::uint64_t mapped);
  void search(std::uint64_t mapped);
  bool continues();
  void begin_repetition(std::uint64_t mapped);
  bool make_plan();
  [[nodiscard]] std::size_t choose_begin(const DevicePlan& plan, std::size_t begin) const;
  void sleep(std::uint64_t mapped) noexcept;

  const std::uint64_t page_;
  const std::uint64_t repetitions_;  // that must be seen before a step is planned
  // Handles of a plan have at most (its peak of live bytes / this) or, if that is more, kDefaultHandleBytes.
  const std::uint64_t held_per_coarse_handle_;
  RequestLog log_;
  std::optional<Step> step_;
  std::size_t next_search_ = kFirstSearch;  // when the log has so many requests
  std::uint64_t mapped_at_search_ = 0;      // handles mapped at the latest search
  std::size_t useless_ = 0;                 // plans
  bool offers_ = false;
  bool sleeps_ = false;  // nothing is logged until something is mapped
};

}  // namespace stalloc::plan
