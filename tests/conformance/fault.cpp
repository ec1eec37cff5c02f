// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/fault.h"

namespace stalloc::conformance {

bool fault(const Machine& machine, CUstream stream) {
  const Driver& cuda = machine.cuda;
  if (cuda.cuModuleLoadData == nullptr || cuda.cuModuleGetFunction == nullptr || cuda.cuLaunchKernel == nullptr) {
    return false;
  }
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  machine.must(cuda.cuModuleLoadData(&module, kFaultingKernel), "cuModuleLoadData");
  machine.must(cuda.cuModuleGetFunction(&function, module, "simcuda_fault"), "cuModuleGetFunction");
  machine.must(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr), "cuLaunchKernel");
  return true;
}

}  // namespace stalloc::conformance
