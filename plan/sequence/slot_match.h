// SPDX-License-Identifier: Apache-2.0
// Finds which slot of a plan serves which request of a run, by counting alone.
#pragma once

#include <cstddef>
#include <vector>

#include "plan/expected.h"
#include "plan/plan.h"
#include "plan/problem.h"

namespace stalloc::plan {

inline constexpr std::size_t kNoSlot = static_cast<std::size_t>(-1);

// Returns the slot of each request: the prologue once, the body repeatedly, the epilogue once. Where slots have lanes,
// the slots of a lane serve the requests of one thread, in its own order: the thread that made the request of the
// lane's first slot. The requests of other threads have kNoSlot. Error: no number of repetitions gives the number of
// requests.
Expected<std::vector<std::size_t>> match_slots(const Problem& problem, const DevicePlan& plan);

}  // namespace stalloc::plan
