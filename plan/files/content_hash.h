// SPDX-License-Identifier: Apache-2.0
// A hash of everything in a problem that its plan depends on.
#pragma once

#include <cstdint>

#include "plan/problem.h"

namespace stalloc::plan {

// Equal for problems that have the same plan except for its device's ordinal: covers sizes, lifetimes, streams, call
// sites and threads (numbered by first appearance) and what is passed through, not the device's ordinal. Addresses and
// times are no part of a problem. Not cryptographic: a caller that relies on it checks the plan (find_unsoundness).
// Pure.
std::uint64_t content_hash(const Problem& problem);

}  // namespace stalloc::plan
