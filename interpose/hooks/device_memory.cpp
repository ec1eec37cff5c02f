// SPDX-License-Identifier: Apache-2.0
// Device memory as the rest of the program sees it: idle memory of the library is available to every function of the
// driver.
#include "interpose/hooks/actions.h"

namespace stalloc::hooks::device_memory {

bool make_room(const Need& need) noexcept {
  Heaps* heaps = Session::known_active_heaps();
  return heaps != nullptr &&
         heaps->make_room(need.bytes, need.device < 0 ? Session::cuda().current_device() : need.device);
}

CUresult info(const Call<CUresult(size_t*, size_t*)>& call, size_t* free, size_t* total) noexcept {
  const CUresult result = call.original(free, total);
  Heaps* heaps = Session::known_active_heaps();
  if (result == CUDA_SUCCESS && free != nullptr && heaps != nullptr) {
    *free += heaps->idle_plan_bytes(Session::cuda().current_device());
  }
  return result;
}

}  // namespace stalloc::hooks::device_memory
