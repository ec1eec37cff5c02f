// SPDX-License-Identifier: Apache-2.0
// Short-lived threads that a program starts again and again.
#pragma once

#include "plan/problem.h"

namespace stalloc::plan {

// If a thread begins after the last request of another one and makes the same requests (by call site and stream, or by
// size and stream where no stacks were recorded), both count as one thread with the first one's number. An example is a
// new thread for each batch. Expected time O(n + threads * the most that make the same requests at one time). Pure.
void merge_successive_threads(Problem& problem);

}  // namespace stalloc::plan
