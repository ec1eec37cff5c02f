// SPDX-License-Identifier: Apache-2.0
// What each hook does: ask the session, forward to the original, report. One function a hook, grouped as hooks.def is.
#pragma once

#include <type_traits>

#include "interpose/hooks/call.h"
#include "interpose/session/session.h"

namespace stalloc::hooks {

namespace startup {
// CUDA is ready, or the program asks what devices there are: a framework may have been loaded since.
CUresult init(const Call<CUresult(unsigned)>& call, unsigned flags) noexcept;
RuntimeResult device_count(const Call<RuntimeResult(int*)>& call, int* count) noexcept;
}  // namespace startup

namespace memory {
CUresult alloc(const Call<CUresult(CUdeviceptr*, size_t)>& call, CUdeviceptr* out, size_t bytes) noexcept;
CUresult alloc_async(const Call<CUresult(CUdeviceptr*, size_t, CUstream)>& call, CUdeviceptr* out, size_t bytes,
                     CUstream stream, Default zero) noexcept;
CUresult alloc_from_pool(const Call<CUresult(CUdeviceptr*, size_t, CUmemoryPool, CUstream)>& call, CUdeviceptr* out,
                         size_t bytes, CUmemoryPool pool, CUstream stream, Default zero) noexcept;
CUresult free(const Call<CUresult(CUdeviceptr)>& call, CUdeviceptr at) noexcept;
CUresult free_async(const Call<CUresult(CUdeviceptr, CUstream)>& call, CUdeviceptr at, CUstream stream,
                    Default zero) noexcept;
CUresult ipc_export(const Call<CUresult(CUipcMemHandle*, CUdeviceptr)>& call, CUipcMemHandle* handle,
                    CUdeviceptr at) noexcept;
}  // namespace memory

namespace pointers {
CUresult address_range(const Call<CUresult(CUdeviceptr*, size_t*, CUdeviceptr)>& call, CUdeviceptr* base, size_t* bytes,
                       CUdeviceptr at) noexcept;
CUresult attribute(const Call<CUresult(void*, CUpointer_attribute, CUdeviceptr)>& call, void* data,
                   CUpointer_attribute attribute, CUdeviceptr at) noexcept;
CUresult attributes(const Call<CUresult(unsigned, CUpointer_attribute*, void**, CUdeviceptr)>& call, unsigned count,
                    CUpointer_attribute* attributes, void** data, CUdeviceptr at) noexcept;
CUresult set_attribute(const Call<CUresult(const void*, CUpointer_attribute, CUdeviceptr)>& call, const void* value,
                       CUpointer_attribute attribute, CUdeviceptr at) noexcept;
CUresult range_handle(const Call<CUresult(void*, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long)>& call,
                      void* handle, CUdeviceptr at, size_t bytes, CUmemRangeHandleType type,
                      unsigned long long flags) noexcept;
// The address to pass to functions that accept only memory which the program itself mapped (cuMemMap). Memory that we
// serve counts as not mapped, so these functions must refuse it.
CUdeviceptr as_mapped_by_program(CUdeviceptr at) noexcept;
inline void* as_mapped_by_program(void* at) noexcept {
  return reinterpret_cast<void*>(as_mapped_by_program(reinterpret_cast<CUdeviceptr>(at)));
}
}  // namespace pointers

namespace pools {
CUresult create(const Call<CUresult(CUmemoryPool*, const CUmemPoolProps*)>& call, CUmemoryPool* pool,
                const CUmemPoolProps* properties) noexcept;
CUresult destroy(const Call<CUresult(CUmemoryPool)>& call, CUmemoryPool pool) noexcept;
CUresult set_current(const Call<CUresult(CUdevice, CUmemoryPool)>& call, CUdevice device, CUmemoryPool pool) noexcept;
CUresult set_current_at(const Call<CUresult(CUmemLocation*, CUmemAllocationType, CUmemoryPool)>& call,
                        CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool) noexcept;
CUresult get_attribute(const Call<CUresult(CUmemoryPool, CUmemPool_attribute, void*)>& call, CUmemoryPool pool,
                       CUmemPool_attribute attribute, void* value) noexcept;
CUresult set_attribute(const Call<CUresult(CUmemoryPool, CUmemPool_attribute, void*)>& call, CUmemoryPool pool,
                       CUmemPool_attribute attribute, void* value) noexcept;
CUresult set_access(const Call<CUresult(CUmemoryPool, const CUmemAccessDesc*, size_t)>& call, CUmemoryPool pool,
                    const CUmemAccessDesc* access, size_t count) noexcept;
CUresult trim(const Call<CUresult(CUmemoryPool, size_t)>& call, CUmemoryPool pool, size_t keep) noexcept;
}  // namespace pools

namespace contexts {
CUresult stream_destroy(const Call<CUresult(CUstream)>& call, CUstream stream) noexcept;
CUresult enable_peer(const Call<CUresult(CUcontext, unsigned)>& call, CUcontext peer, unsigned flags) noexcept;
CUresult destroy(const Call<CUresult(CUcontext)>& call, CUcontext context) noexcept;
CUresult green_destroy(const Call<CUresult(CUgreenCtx_st*)>& call, CUgreenCtx_st* green) noexcept;
CUresult primary_reset(const Call<CUresult(CUdevice)>& call, CUdevice device) noexcept;
CUresult primary_release(const Call<CUresult(CUdevice)>& call, CUdevice device) noexcept;
}  // namespace contexts

// Each only forwards when the session is not active: in a forked child the gate may be held by a thread that only the
// parent has.
namespace captures {
template <class... Arguments>
CUresult begin(const Call<CUresult(Arguments...)>& call, std::type_identity_t<Arguments>... arguments) noexcept {
  if (!Session::get().active()) return call.original(arguments...);
  return Session::captures().begin([&] { return call.original(arguments...); });
}
CUresult end(const Call<CUresult(CUstream, CUgraph*)>& call, CUstream stream, CUgraph* graph, Default zero) noexcept;
// A stream that waits for an event of a captured one joins its capture.
CUresult wait_event(const Call<CUresult(CUstream, CUevent, unsigned)>& call, CUstream stream, CUevent event,
                    unsigned flags) noexcept;
}  // namespace captures

namespace synchronization {
// Called around a call that waits: freed memory is given back as far as the pools' release thresholds demand.
void begin() noexcept;
void end() noexcept;  // pre: the call succeeded
}  // namespace synchronization

namespace events {
CUresult create(const Call<CUresult(CUevent*, unsigned)>& call, CUevent* event, unsigned flags) noexcept;
CUresult destroy(const Call<CUresult(CUevent)>& call, CUevent event) noexcept;
CUresult record(const Call<CUresult(CUevent, CUstream)>& call, CUevent event, CUstream stream, Default zero) noexcept;
CUresult record(const Call<CUresult(CUevent, CUstream, unsigned)>& call, CUevent event, CUstream stream, unsigned flags,
                Default zero) noexcept;
// All work of a context.
CUresult record_context(const Call<CUresult(CUcontext, CUevent)>& call, CUcontext context, CUevent event) noexcept;
CUresult record_context(const Call<CUresult(CUgreenCtx_st*, CUevent)>& call, CUgreenCtx_st* context,
                        CUevent event) noexcept;
CUresult wait(const Call<CUresult(CUstream, CUevent, unsigned)>& call, CUstream stream, CUevent event, unsigned flags,
              Default zero) noexcept;
CUresult query(const Call<CUresult(CUevent)>& call, CUevent event) noexcept;
CUresult synchronize(const Call<CUresult(CUevent)>& call, CUevent event) noexcept;
CUresult query_stream(const Call<CUresult(CUstream)>& call, CUstream stream, Default zero) noexcept;
CUresult synchronize_stream(const Call<CUresult(CUstream)>& call, CUstream stream, Default zero) noexcept;
CUresult synchronize_context(const Call<CUresult()>& call) noexcept;
CUresult synchronize_context(const Call<CUresult(CUcontext)>& call, CUcontext context) noexcept;

// For events that may be recorded without a call that we see: no order is learnt from them any more.
void distrust(CUevent event) noexcept;
void distrust_launch(const CUlaunchConfig* launch) noexcept;
void distrust_node(const CUgraphNodeParams* node) noexcept;

// Distrusts the event, then forwards the call.
template <class... Arguments>
CUresult recorded_unseen(const Call<CUresult(Arguments...)>& call, CUevent event,
                         std::type_identity_t<Arguments>... arguments) noexcept {
  distrust(event);
  return call.original(arguments...);
}
template <class... Arguments>
CUresult node(const Call<CUresult(Arguments...)>& call, const CUgraphNodeParams* node,
              std::type_identity_t<Arguments>... arguments) noexcept {
  distrust_node(node);
  return call.original(arguments...);
}
// For a call that creates an event which others may record.
template <class... Arguments>
CUresult create_unseen(const Call<CUresult(CUevent*, Arguments...)>& call, CUevent* event,
                       std::type_identity_t<Arguments>... arguments) noexcept {
  const CUresult result = call.original(event, arguments...);
  if (result == CUDA_SUCCESS) distrust(*event);
  return result;
}

// The program looked up a driver function that is not hooked.
void looked_up(const char* symbol) noexcept;
}  // namespace events

namespace device_memory {
// Gives idle memory back to the driver for a caller that was refused device memory. `bytes` is how much the caller
// wants, 0 when that is not known. Returns false when there is nothing to give back.
bool make_room(size_t bytes) noexcept;
// a * b, or the largest number when that overflows.
constexpr size_t product(size_t a, size_t b) noexcept { return b != 0 && a > ~size_t{0} / b ? ~size_t{0} : a * b; }

// Forwards the call; when it is refused memory and make_room succeeds, forwards it once more.
template <class Result, class... Arguments>
CUresult take(const Call<Result(Arguments...)>& call, size_t bytes,
              std::type_identity_t<Arguments>... arguments) noexcept {
  const CUresult result = call.original(arguments...);
  if (result != CUDA_ERROR_OUT_OF_MEMORY || !make_room(bytes)) return result;
  return call.original(arguments...);
}
// The program has made a stream with these flags.
void stream_created(unsigned flags) noexcept;
// As `take`, for a function that makes a stream.
template <class... Arguments>
CUresult take_stream(const Call<CUresult(CUstream*, unsigned, Arguments...)>& call, CUstream* stream, unsigned flags,
                     std::type_identity_t<Arguments>... arguments) noexcept {
  const CUresult result = take(call, 0, stream, flags, arguments...);
  if (result == CUDA_SUCCESS) stream_created(flags);
  return result;
}
// A kernel's launch may record events.
template <class... Arguments>
CUresult launch(const Call<CUresult(const CUlaunchConfig*, Arguments...)>& call, const CUlaunchConfig* launch,
                std::type_identity_t<Arguments>... arguments) noexcept {
  if (launch != nullptr && launch->numAttrs != 0) events::distrust_launch(launch);
  return take(call, 0, launch, arguments...);
}
CUresult info(const Call<CUresult(size_t*, size_t*)>& call, size_t* free, size_t* total) noexcept;
}  // namespace device_memory

namespace lookup {
CUresult get_proc_address(const Call<CUresult(const char*, void**, int, cuuint64_t)>& call, const char* name,
                          void** address, int version, cuuint64_t flags) noexcept;
CUresult get_proc_address_v2(
    const Call<CUresult(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*)>& call, const char* name,
    void** address, int version, cuuint64_t flags, CUdriverProcAddressQueryResult* status) noexcept;
}  // namespace lookup

namespace runtime {
// Forwards the call, which reaches the driver's hooks. Only the caller is noted here.
template <class... Arguments>
RuntimeResult forward(const Call<RuntimeResult(Arguments...)>& call, Arguments... arguments) noexcept {
  return call.original(arguments...);
}
RuntimeResult alloc_async(const Call<RuntimeResult(void**, size_t, CUstream)>& call, void** out, size_t bytes,
                          CUstream stream, Default zero) noexcept;
RuntimeResult alloc_from_pool(const Call<RuntimeResult(void**, size_t, CUmemoryPool, CUstream)>& call, void** out,
                              size_t bytes, CUmemoryPool pool, CUstream stream, Default zero) noexcept;
RuntimeResult free_async(const Call<RuntimeResult(void*, CUstream)>& call, void* at, CUstream stream,
                         Default zero) noexcept;
RuntimeResult set_device(const Call<RuntimeResult(int)>& call, int device) noexcept;
}  // namespace runtime

}  // namespace stalloc::hooks
