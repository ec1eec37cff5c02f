// SPDX-License-Identifier: Apache-2.0
// Contexts that end, and devices that become each other's peers.
#include <algorithm>
#include <array>
#include <cstddef>

#include "interpose/hooks/actions.h"

namespace stalloc::hooks::contexts {
namespace {

// `heaps` may be null: the session serves nothing.
void before_end(Heaps* heaps, CUcontext context) noexcept {
  if (heaps != nullptr) heaps->before_context_end(context);
}

// `ended`: whether the context has ended. Null: there is none.
void after_end(Heaps* heaps, CUcontext context, bool ended) noexcept {
  if (heaps != nullptr) heaps->after_context_end(context, ended);
  if (ended) Session::captures().context_ended(context);
}

// Calls `release`, which releases at most one reference to the primary context of a device in [first, end). Releasing
// the last reference ends the context.
template <class Release>
CUresult release_primary(Heaps* heaps, int first, int end, Release release) {
  const Cuda& cuda = Session::cuda();
  std::array<CUcontext, Heaps::kDevices> primaries{};
  end = std::min(end, Heaps::kDevices);
  for (int device = std::max(first, 0); device < end; ++device) {
    CUcontext& primary = primaries[static_cast<std::size_t>(device)];
    primary = cuda.primary_context(device);
    before_end(heaps, primary);
  }
  const CUresult result = release();
  for (int device = std::max(first, 0); device < end; ++device) {
    const CUcontext primary = primaries[static_cast<std::size_t>(device)];
    after_end(heaps, primary, primary != nullptr && !cuda.is_primary_active(device));
    // Also after a failure: another thread may have released the last reference.
    if (heaps != nullptr) heaps->primary_released(device);
  }
  return result;
}

}  // namespace

CUresult enable_peer(const Call<CUresult(CUcontext, unsigned)>& call, CUcontext peer, unsigned flags) noexcept {
  const CUresult result = call.original(peer, flags);
  Heaps* heaps = Session::active_heaps();
  if (result != CUDA_SUCCESS || heaps == nullptr) return result;
  const Cuda& cuda = Session::cuda();
  const int device = cuda.device_of(peer);
  const CUresult granted =
      device_memory::call_until_served(0, [&] { return heaps->grant_access(device, cuda.current_device()); });
  // Undone, lest CUDA says that it is enabled already when the program tries again.
  if (granted != CUDA_SUCCESS) cuda.disable_peer(peer);
  return granted;
}

// The context of a heap is a primary one, which CUDA refuses to destroy here. If it does not, the heap is closed.
CUresult destroy(const Call<CUresult(CUcontext)>& call, CUcontext context) noexcept {
  if (!Session::get().active()) return call.original(context);
  Heaps* heaps = Session::active_heaps();
  before_end(heaps, context);
  const CUresult result = call.original(context);
  after_end(heaps, context, result == CUDA_SUCCESS);
  if (result == CUDA_SUCCESS && heaps != nullptr) heaps->context_released(context);
  return result;
}

// Takes back a reference of cuCtxAttach, and ends the context if it was the last one, which CUDA does not tell. A
// context that ends is no longer current, as cuCtxDestroy says. After success the heaps are not told that it has ended:
// memory whose free only an event of that context could show to be complete stays unused.
CUresult detach(const Call<CUresult(CUcontext)>& call, CUcontext context) noexcept {
  if (!Session::get().active()) return call.original(context);
  Heaps* heaps = Session::active_heaps();
  const Cuda& cuda = Session::cuda();
  const bool was_current = cuda.current_context() == context;
  before_end(heaps, context);
  const CUresult result = call.original(context);
  if (result != CUDA_SUCCESS) {
    after_end(heaps, context, false);
    return result;
  }
  if (was_current && cuda.current_context() != context) Session::captures().context_ended(context);
  if (heaps != nullptr) heaps->context_released(context);
  return result;
}

CUresult primary_reset(const Call<CUresult(CUdevice)>& call, CUdevice device) noexcept {
  if (!Session::get().active()) return call.original(device);
  Heaps* heaps = Session::active_heaps();
  const CUcontext primary = Session::cuda().primary_context(device);
  if (heaps != nullptr) heaps->before_primary_reset(device);
  before_end(heaps, primary);
  const CUresult result = call.original(device);
  after_end(heaps, primary, result == CUDA_SUCCESS);
  if (heaps != nullptr) heaps->after_primary_reset(device);
  return result;
}

CUresult primary_release(const Call<CUresult(CUdevice)>& call, CUdevice device) noexcept {
  if (!Session::get().active()) return call.original(device);
  return release_primary(Session::active_heaps(), device, device + 1, [&] { return call.original(device); });
}

// A green context references its device's primary context. Which device that is cannot be queried without making the
// green context current, which only one thread may do at a time. So the primary contexts of all devices are checked.
// CUDA does not document what becomes of captures that began on streams of the green context, which it does not destroy
// either. So these captures count as under way, and the driver goes on being asked what they forbid.
CUresult green_destroy(const Call<CUresult(CUgreenCtx_st*)>& call, CUgreenCtx_st* green) noexcept {
  if (!Session::get().active()) return call.original(green);
  Heaps* heaps = Session::active_heaps();
  const CUcontext context = Session::cuda().context_of(green);
  before_end(heaps, context);
  const CUresult result =
      release_primary(heaps, 0, Session::cuda().device_count(), [&] { return call.original(green); });
  // CUDA does not document that this call waits for the green context's work, so the same holds as for `detach`.
  if (result != CUDA_SUCCESS) after_end(heaps, context, false);
  return result;
}

}  // namespace stalloc::hooks::contexts
