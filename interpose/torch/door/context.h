// SPDX-License-Identifier: Apache-2.0
// The context of a thread that has none yet.
#pragma once

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <cuda_runtime_api.h>

namespace stalloc::torch::door {

// Makes the primary context of the thread's device current, and creates it if need be. Another thread's capture in
// global mode forbids this call and would be invalidated by it, so the thread's capture mode is relaxed meanwhile.
inline void make_context_current() {
  const c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
  C10_CUDA_CHECK(cudaFree(nullptr));
}

}  // namespace stalloc::torch::door
