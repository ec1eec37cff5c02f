// SPDX-License-Identifier: Apache-2.0
// The steps of a recorded run.
#pragma once

#include <optional>

#include "plan/problem.h"
#include "plan/steps/steady_state.h"
#include "plan/steps/thread_order.h"

namespace stalloc::plan {

struct Steps {
  SteadyState steady;                  // of `threads->problem` if there is one, else of the recorded problem
  std::optional<ThreadOrder> threads;  // set where threads interleave differently from step to step
};

// Finds the steady state in the recorded order of requests, or in the order by threads if clearly more of the run
// repeats in it; by sizes or, if that fails, by call sites. O(threads * n log n). Pure.
Steps find_steps(const Problem& problem);

}  // namespace stalloc::plan
