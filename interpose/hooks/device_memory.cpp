// SPDX-License-Identifier: Apache-2.0
// Device memory as the rest of the program sees it: memory that we hold idle is available to every function of the
// driver. Functions that make streams are among these, and tell of streams that synchronise with the legacy stream.
#include "interpose/base/log.h"
#include "interpose/hooks/actions.h"

namespace stalloc::hooks::device_memory {

bool make_room(size_t bytes) noexcept {
  Heaps* heaps = Session::known_active_heaps();
  return heaps != nullptr && heaps->make_room(bytes);
}

void stream_created(unsigned flags) noexcept {
  if ((flags & CU_STREAM_NON_BLOCKING) != 0 || !Heaps::note_blocking_stream()) return;
  log::debug("the program makes streams that synchronise with the legacy stream");
  if (Heaps* heaps = Session::known_active_heaps()) heaps->blocking_streams_exist();
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
