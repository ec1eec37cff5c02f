// SPDX-License-Identifier: Apache-2.0
// Which slot of a plan serves which request of a run, by counting alone.
#pragma once

#include <cstddef>
#include <vector>

#include "plan/outcome.h"
#include "plan/plan.h"
#include "plan/problem.h"

namespace stalloc::plan {

inline constexpr std::size_t kNoSlot = static_cast<std::size_t>(-1);

// The slot of each request: prologue once, body over and over, epilogue once. Where slots have lanes, those of a lane
// are taken by the requests of one thread, in its own order: the thread that made the lane's first slot's request; the
// requests of other threads have kNoSlot. Error: no number of repetitions makes the slots so many requests.
Outcome<std::vector<std::size_t>> match_slots(const Problem& problem, const DevicePlan& plan);

}  // namespace stalloc::plan
