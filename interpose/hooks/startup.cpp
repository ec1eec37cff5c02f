// SPDX-License-Identifier: Apache-2.0
// The functions by which a process begins to use CUDA.
#include "interpose/hooks/actions.h"
#include "interpose/session/session.h"
#include "interpose/torch/integration.h"

namespace stalloc::hooks::startup {

CUresult init(const Call<CUresult(unsigned)>& call, unsigned flags) noexcept {
  const CUresult result = call.original(flags);
  if (result == CUDA_SUCCESS) {
    Session::get().cuda_is_used();
    torch::open_door_once();
  }
  return result;
}

RuntimeResult device_count(const Call<RuntimeResult(int*)>& call, int* count) noexcept {
  const RuntimeResult result = call.original(count);
  if (result == 0) torch::open_door_once();
  return result;
}

}  // namespace stalloc::hooks::startup
