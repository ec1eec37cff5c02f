// A kernel that faults.
#pragma once

#include "tests/conformance/machine.h"

namespace stalloc::conformance {

// As PTX. simcuda gives every module a function of this name, whatever is loaded.
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

// Runs it on `stream`: the context's error is known at the next synchronisation. False when the driver has no modules.
bool fault(const Machine& machine, CUstream stream);

}  // namespace stalloc::conformance
