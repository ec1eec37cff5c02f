// SPDX-License-Identifier: Apache-2.0
// A hash of everything in a problem on which its plan depends.
#pragma once

#include <cstdint>

#include "plan/problem.h"

namespace stalloc::plan {

// Equal for problems that have the same plan except for its device's ordinal. It covers sizes, lifetimes, streams, call
// sites and threads (numbered by first appearance) and which requests are left to CUDA, but not the device's ordinal.
// Addresses and times are not part of a problem. Not cryptographic: a caller that relies on it checks the plan
// (find_unsoundness). Pure.
std::uint64_t content_hash(const Problem& problem);

}  // namespace stalloc::plan
