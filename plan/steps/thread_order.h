// SPDX-License-Identifier: Apache-2.0
// One order of requests for a program whose threads interleave differently from step to step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "plan/problem.h"
#include "plan/steps/steady_state.h"

namespace stalloc::plan {

inline constexpr std::size_t kMostLanes = 16;

struct ThreadOrder {
  Problem problem;                    // the requests in the order that repeats, with lifetimes that hold for both
  std::vector<std::size_t> position;  // of each recorded request: its index in `problem`; kNone: left out
  std::vector<std::uint8_t> lanes;    // of each request of `problem`: which thread makes it, by first appearance
};

// Each thread makes its own requests in the same order in every step; only the interleaving differs. The thread with
// the most requests is the leader. Threads that keep their place among its requests stay where they are. The requests
// of every other thread are moved to the earliest place in the leader's step at which they were ever made, and live
// until the latest place at which they were ever freed (reorder.h). A thread is left out if it does not repeat with the
// leader, or if these longer lifetimes would raise the peak by more than a thousandth: a thread that drifts freely
// would hold its memory all the time. Empty if there is only one thread, or if the leader does not repeat. O(threads *
// n log n). Pure.
std::optional<ThreadOrder> order_by_threads(const Problem& problem, RequestKey key);

}  // namespace stalloc::plan
