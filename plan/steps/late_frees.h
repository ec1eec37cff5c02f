// SPDX-License-Identifier: Apache-2.0
// Frees that come later in some steps than in others.
#pragma once

#include <cstdint>

#include "plan/problem.h"

namespace stalloc::plan {

// A run without its late frees.
struct UsualFrees {
  Problem problem;
  std::uint64_t late = 0;  // frees that come earlier in `problem` than they did in the run
};

// When memory that several streams use becomes free depends on the device, and in each step other frees come late. As a
// request of the body lives for the longest of all repetitions, late frees of different steps would add up.
//
// If that needs more than a thousandth above the usual peak, the latest frees of each request count as early as those
// of the other repetitions: as few as are needed, and fewer than in half of the repetitions. The usual peak is that of
// the repetition in the middle, or of what does not repeat, if it is higher: the peak of the whole run may be that of
// one late free. When a free is late in a later run, the request that finds its slot taken goes into a gap
// (plan/follow/gap.h). Only for runs that are planned in the recorded order, and not by threads (steps.h). Pre: the
// requests fit a device. O(threads * n log n). Pure.
UsualFrees without_late_frees(Problem problem);

}  // namespace stalloc::plan
