// SPDX-License-Identifier: Apache-2.0
// The requests of a run in another order.
#pragma once

#include <cstddef>
#include <vector>

#include "plan/problem.h"

namespace stalloc::plan {

// Returns the requests of `problem` that `order` names, in this order. Lifetimes are extended so that any two requests
// that lived at the same time in the recorded run do so here. So a plan that is sound for the result is sound for the
// recorded run. `order` holds indices of requests, each at most once. O(n log n). Pure.
Problem reorder(const Problem& problem, const std::vector<std::size_t>& order);

}  // namespace stalloc::plan
