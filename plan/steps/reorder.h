// SPDX-License-Identifier: Apache-2.0
// The requests of a run in another order.
#pragma once

#include <cstddef>
#include <vector>

#include "plan/problem.h"

namespace stalloc::plan {

// The requests of `problem` that `order` names, in this order. Each lives as long there as it must so that any two
// that lived at the same time in the recorded run do so here: then a plan that is sound for the result is sound for the
// recorded run. `order` holds indices of requests, each at most once. O(n log n). Pure.
Problem reorder(const Problem& problem, const std::vector<std::size_t>& order);

}  // namespace stalloc::plan
