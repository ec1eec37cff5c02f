// SPDX-License-Identifier: Apache-2.0
// Short-lived threads that a program starts again and again.
#pragma once

#include "plan/problem.h"

namespace stalloc::plan {

// A thread that begins after another made its last request, and makes the very same ones (call site and stream, or size
// and stream where no stacks were recorded), takes its place: both count as one thread with the first one's number (for
// example, a new thread for each batch). Expected time O(n), O(threads^2) where all differ. Pure.
void join_successors(Problem& problem);

}  // namespace stalloc::plan
