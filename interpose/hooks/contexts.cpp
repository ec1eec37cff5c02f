// SPDX-License-Identifier: Apache-2.0
// Streams and contexts that end, and devices that become each other's peers.
#include "interpose/hooks/actions.h"

namespace stalloc::hooks::contexts {

CUresult stream_destroy(const Call<CUresult(CUstream)>& call, CUstream stream) noexcept {
  Session& session = Session::get();
  if (record::Recorder* recorder = session.active() ? session.recorder() : nullptr) recorder->stream_destroyed(stream);
  if (Heaps* heaps = Session::active_heaps()) heaps->stream_destroyed(stream);
  return call.original(stream);
}

CUresult enable_peer(const Call<CUresult(CUcontext, unsigned)>& call, CUcontext peer, unsigned flags) noexcept {
  const CUresult result = call.original(peer, flags);
  Heaps* heaps = Session::active_heaps();
  if (result == CUDA_SUCCESS && heaps != nullptr) {
    heaps->grant_access(Session::cuda().device_of(peer), Session::cuda().current_device());
  }
  return result;
}

// A heap's context is a primary one, which CUDA does not let anybody destroy; if it did, the heap would be told.
CUresult destroy(const Call<CUresult(CUcontext)>& call, CUcontext context) noexcept {
  Heaps* heaps = Session::active_heaps();
  if (heaps != nullptr) heaps->context_ends(context);
  const CUresult result = call.original(context);
  if (heaps != nullptr) heaps->context_ended(context, result == CUDA_SUCCESS);
  if (result == CUDA_SUCCESS && heaps != nullptr) heaps->context_released(context);
  return result;
}

CUresult primary_reset(const Call<CUresult(CUdevice)>& call, CUdevice device) noexcept {
  Heaps* heaps = Session::active_heaps();
  const CUcontext primary = heaps != nullptr ? Session::cuda().primary_context(device) : nullptr;
  if (heaps != nullptr) {
    heaps->resetting(device);
    heaps->context_ends(primary);
  }
  const CUresult result = call.original(device);
  if (heaps != nullptr) {
    heaps->context_ended(primary, result == CUDA_SUCCESS);
    heaps->was_reset(device);
  }
  return result;
}

CUresult primary_release(const Call<CUresult(CUdevice)>& call, CUdevice device) noexcept {
  Heaps* heaps = Session::active_heaps();
  const CUcontext primary = heaps != nullptr ? Session::cuda().primary_context(device) : nullptr;
  if (heaps != nullptr) heaps->context_ends(primary);
  const CUresult result = call.original(device);
  // The last release ends it.
  if (heaps != nullptr) heaps->context_ended(primary, primary != nullptr && !Session::cuda().is_primary_active(device));
  if (result == CUDA_SUCCESS && heaps != nullptr) heaps->primary_released(device);
  return result;
}

}  // namespace stalloc::hooks::contexts
