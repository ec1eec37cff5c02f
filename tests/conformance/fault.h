// SPDX-License-Identifier: Apache-2.0
// A kernel that faults.
#pragma once

#include "tests/conformance/machine.h"

namespace stalloc::conformance {

// The kernel as PTX. In simcuda every module has a function of this name, whatever was loaded.
inline constexpr char kFaultingKernel[] = R"(
.version 6.3
.target sm_75
.address_size 64
.visible .entry simcuda_fault()
{
  .reg .b64 %rd<2>;
  .reg .b32 %r<2>;
  mov.u64 %rd1, 0;
  mov.u32 %r1, 1;
  st.global.u32 [%rd1], %r1;
  ret;
}
)";

// Runs the kernel on `stream`. The context's error is known at the next synchronization. False when the driver has no
// modules.
bool fault(const Machine& machine, CUstream stream);

}  // namespace stalloc::conformance
