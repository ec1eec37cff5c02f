// SPDX-License-Identifier: Apache-2.0
// Estimates the time for mapping a plan when the program starts.
#pragma once

#include "plan/plan.h"

namespace stalloc::plan {

// Estimated milliseconds to create every handle, and to map every view and give access to it. The model is based on
// measurements on one H200 (CUDA 13.0, driver 580): cuMemCreate, cuMemMap and cuMemSetAccess took 10, 2 and 20 us for a
// handle of 2 MiB, and 40, 2 and 37 us for one of 128 MiB; 100 GiB in one handle took 211 ms. The model is linear
// between these points and beyond them; smaller handles cost as much as those of 2 MiB. Pure.
double estimate_startup_ms(const DevicePlan& plan);

}  // namespace stalloc::plan
