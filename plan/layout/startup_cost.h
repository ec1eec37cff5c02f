// SPDX-License-Identifier: Apache-2.0
// What mapping a plan costs when the program starts.
#pragma once

#include "plan/plan.h"

namespace stalloc::plan {

// Estimated milliseconds to create every handle, and to map every view and give access to it. A model from figures
// measured on one H200 (CUDA 13.0, driver 580): cuMemCreate, cuMemMap and cuMemSetAccess cost per handle, hardly per
// byte: 10, 2 and 20 us a handle of 2 MiB; 40, 2 and 37 us of 128 MiB; 100 GiB in one handle took 211 ms. Between these
// points and beyond them it is linear; smaller handles cost what 2 MiB ones do. Pure.
double estimate_startup_ms(const DevicePlan& plan);

}  // namespace stalloc::plan
