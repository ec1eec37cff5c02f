// SPDX-License-Identifier: Apache-2.0
// The actions of the hooks, one function for each, in the groups of hooks.def.
//
// An action gets the program's arguments and `call`, which can call CUDA's own function (call.h). Unless its namespace
// says otherwise, it calls that function with the same arguments and returns its result unchanged; before or after, it
// informs the recorder or the heaps. While the session is inactive, actions only forward. `default_stream` says what
// stream 0 means at the entry point. Actions throw nothing, and any thread may call them at any time, with any current
// context or none.
#pragma once

#include <type_traits>

#include "interpose/hooks/call.h"
#include "interpose/session/session.h"

namespace stalloc::hooks {

// Forwarded. Afterwards CUDA is ready, or the program knows its devices. If PyTorch has been loaded by now, its door is
// opened.
namespace startup {
CUresult init(const Call<CUresult(unsigned)>& call, unsigned flags) noexcept;
RuntimeResult device_count(const Call<RuntimeResult(int*)>& call, int* count) noexcept;
}  // namespace startup

// Requests and frees. A request is served by the heap of the current context and CUDA_SUCCESS returned, or it is
// forwarded. It is forwarded if no heap serves that context, if the stream is being captured, if the heap declines, or
// if the request must have CUDA's own memory (docs/compatibility.md). If CUDA then has no memory, idle memory of the
// heaps is given back and the function called once more. CUDA_ERROR_NOT_PERMITTED: the plan cannot be used and
// STALLOC_PLAN_STRICT is set. A free goes to the heap that holds the address, else it is forwarded. During a capture
// that forbids them, requests and frees return CUDA's error. In trace mode all of these are recorded, and so are
// exports by IPC, which are always forwarded.
namespace memory {
CUresult alloc(const Call<CUresult(CUdeviceptr*, size_t)>& call, CUdeviceptr* out, size_t bytes) noexcept;
CUresult alloc_async(const Call<CUresult(CUdeviceptr*, size_t, CUstream)>& call, CUdeviceptr* out, size_t bytes,
                     CUstream stream, DefaultStream default_stream) noexcept;
CUresult alloc_from_pool(const Call<CUresult(CUdeviceptr*, size_t, CUmemoryPool, CUstream)>& call, CUdeviceptr* out,
                         size_t bytes, CUmemoryPool pool, CUstream stream, DefaultStream default_stream) noexcept;
CUresult free(const Call<CUresult(CUdeviceptr)>& call, CUdeviceptr at) noexcept;
CUresult free_async(const Call<CUresult(CUdeviceptr, CUstream)>& call, CUdeviceptr at, CUstream stream,
                    DefaultStream default_stream) noexcept;
CUresult ipc_export(const Call<CUresult(CUipcMemHandle*, CUdeviceptr)>& call, CUipcMemHandle* handle,
                    CUdeviceptr at) noexcept;
}  // namespace memory

// Questions about addresses. They are forwarded; for served memory, the answers of the driver about the mapping are
// replaced by those for an allocation of CUDA (pointer_rules.h). For served memory that the program has freed, the
// driver is queried about an unknown address. `set_attribute` of SYNC_MEMOPS on served memory acts on the whole
// context.
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
// Memory that CUDA allocated has no access flags, so neither has ours.
CUresult access(const Call<CUresult(unsigned long long*, const CUmemLocation*, CUdeviceptr)>& call,
                unsigned long long* flags, const CUmemLocation* location, CUdeviceptr at) noexcept;
// The address to pass to functions that accept only memory which the program itself mapped (cuMemMap). Memory that we
// serve counts as not mapped, so these functions must refuse it.
CUdeviceptr as_mapped_by_program(CUdeviceptr at) noexcept;
inline void* as_mapped_by_program(void* at) noexcept {
  return reinterpret_cast<void*>(as_mapped_by_program(reinterpret_cast<CUdeviceptr>(at)));
}
}  // namespace pointers

// Memory pools. All calls are forwarded, and the heaps are informed of successful ones. `get_attribute` adds what the
// heaps serve in the pool's name to the driver's figures; `trim` gives back idle memory of the heaps before it is
// forwarded. `set_access` returns the driver's error where it refuses a peer access to served memory.
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

// The ends of contexts, and access between devices. All calls are forwarded. A heap is closed before its device's
// primary context is reset, and after that context was released for the last time. `enable_peer` returns the driver's
// error, and has changed nothing, where it refuses the peer access to served memory.
namespace contexts {
CUresult enable_peer(const Call<CUresult(CUcontext, unsigned)>& call, CUcontext peer, unsigned flags) noexcept;
CUresult destroy(const Call<CUresult(CUcontext)>& call, CUcontext context) noexcept;
CUresult detach(const Call<CUresult(CUcontext)>& call, CUcontext context) noexcept;
CUresult green_destroy(const Call<CUresult(CUgreenCtx_st*)>& call, CUgreenCtx_st* green) noexcept;
CUresult primary_reset(const Call<CUresult(CUdevice)>& call, CUdevice device) noexcept;
CUresult primary_release(const Call<CUresult(CUdevice)>& call, CUdevice device) noexcept;
}  // namespace contexts

// Stream captures. All calls are forwarded, and the session notes the captures (session/captures.h), so that the
// library gives no work to a captured stream. In a forked child, where the session is inactive, a thread that only the
// parent has may hold the gate, so that nothing may wait for it.
namespace captures {
template <class... Arguments>
CUresult begin(const Call<CUresult(CUstream, Arguments...)>& call, CUstream stream,
               std::type_identity_t<Arguments>... arguments) noexcept {
  if (!Session::get().active()) return call.original(stream, arguments...);
  return Session::captures().begin(stream, [&] { return call.original(stream, arguments...); });
}
CUresult end(const Call<CUresult(CUstream, CUgraph*)>& call, CUstream stream, CUgraph* graph,
             DefaultStream default_stream) noexcept;
// A stream that waits for an event of a captured one joins its capture.
CUresult wait_event(const Call<CUresult(CUstream, CUevent, unsigned)>& call, CUstream stream, CUevent event,
                    unsigned flags, DefaultStream default_stream) noexcept;
}  // namespace captures

// Events, and other calls that order streams or show that work is complete. All calls are forwarded; the order that
// they create is noted (serve/streams/event_order.h). After calls that synchronize, the heaps give back free memory
// above the pools' release thresholds.
namespace events {
CUresult create(const Call<CUresult(CUevent*, unsigned)>& call, CUevent* event, unsigned flags) noexcept;
CUresult destroy(const Call<CUresult(CUevent)>& call, CUevent event) noexcept;
CUresult record(const Call<CUresult(CUevent, CUstream)>& call, CUevent event, CUstream stream,
                DefaultStream default_stream) noexcept;
CUresult record(const Call<CUresult(CUevent, CUstream, unsigned)>& call, CUevent event, CUstream stream, unsigned flags,
                DefaultStream default_stream) noexcept;
// These record all work of a context in an event. No order is learnt from them.
CUresult record_context(const Call<CUresult(CUcontext, CUevent)>& call, CUcontext context, CUevent event) noexcept;
CUresult record_context(const Call<CUresult(CUgreenCtx_st*, CUevent)>& call, CUgreenCtx_st* context,
                        CUevent event) noexcept;
CUresult wait(const Call<CUresult(CUstream, CUevent, unsigned)>& call, CUstream stream, CUevent event, unsigned flags,
              DefaultStream default_stream) noexcept;
CUresult query(const Call<CUresult(CUevent)>& call, CUevent event) noexcept;
CUresult synchronize(const Call<CUresult(CUevent)>& call, CUevent event) noexcept;
CUresult query_stream(const Call<CUresult(CUstream)>& call, CUstream stream, DefaultStream default_stream) noexcept;
CUresult synchronize_stream(const Call<CUresult(CUstream)>& call, CUstream stream,
                            DefaultStream default_stream) noexcept;
CUresult synchronize_context(const Call<CUresult()>& call) noexcept;
CUresult synchronize_context(const Call<CUresult(CUcontext)>& call, CUcontext context) noexcept;

// For events that may be recorded by calls that are not hooked: no order is learnt from them any more.
void distrust(CUevent event) noexcept;
void distrust_launch(const CUlaunchConfig* launch) noexcept;
void distrust_node(const CUgraphNodeParams* node) noexcept;

// Distrusts the event, then forwards the call.
template <class... Arguments>
CUresult record_unobserved(const Call<CUresult(Arguments...)>& call, CUevent event,
                           std::type_identity_t<Arguments>... arguments) noexcept {
  distrust(event);
  return call.original(arguments...);
}
// Forwards a call that creates an event which other interfaces may record, and distrusts that event.
template <class... Arguments>
CUresult create_unobserved(const Call<CUresult(CUevent*, Arguments...)>& call, CUevent* event,
                           std::type_identity_t<Arguments>... arguments) noexcept {
  const CUresult result = call.original(event, arguments...);
  if (result == CUDA_SUCCESS) distrust(*event);
  return result;
}

// Whether a driver function of this name that is not hooked may record events.
bool may_record_by(const char* symbol) noexcept;
// The program has found a driver function that is not hooked. If it may record events, no event is relied on any more.
void looked_up(const char* symbol) noexcept;
}  // namespace events

// Functions that CUDA itself gives device memory: forwarded, and called again after idle memory was given back.
namespace device_memory {
// What a call needs: how many bytes, 0 if that is not known, and of which device; by default that of the thread's
// current context.
struct Need {
  static constexpr int kCurrentDevice = -1;
  // NOLINTNEXTLINE(google-explicit-constructor): most calls say only how much they need
  constexpr Need(size_t needed, int of = kCurrentDevice) noexcept : bytes(needed), device(of) {}
  size_t bytes;
  int device;
};
// Gives idle memory back to the driver for a caller that was refused device memory. Returns false if nothing was given
// back.
bool make_room(const Need& need) noexcept;
// The device of memory with these properties, which may be null.
inline int device_of(const CUmemAllocationProp* properties) noexcept {
  const bool is_known = properties != nullptr && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  return is_known ? properties->location.id : Need::kCurrentDevice;
}
// a * b, or the largest number when that overflows.
constexpr size_t product(size_t a, size_t b) noexcept { return b != 0 && a > ~size_t{0} / b ? ~size_t{0} : a * b; }

// The device memory that is needed so that a device can use `bytes` bytes of host memory: eight for each page of 4 KiB.
constexpr size_t page_tables(size_t bytes) noexcept { return bytes / 512 + 1; }

// Calls `original`, and calls it again while it is refused memory and make_room succeeds: at first with idle memory,
// and then with that of a plan. The driver is asked first, even if it reports less free memory than is needed, since it
// can free more by moving managed memory to the host.
template <class Original>
CUresult call_until_served(const Need& need, Original original) noexcept {
  CUresult result = original();
  for (int again = 0; again < 2 && result == CUDA_ERROR_OUT_OF_MEMORY && make_room(need); ++again) result = original();
  return result;
}
// The same for a call that is forwarded.
template <class Result, class... Arguments>
CUresult call_with_retry(const Call<Result(Arguments...)>& call, const Need& need,
                         std::type_identity_t<Arguments>... arguments) noexcept {
  return call_until_served(need, [&] { return call.original(arguments...); });
}
// As `call_with_retry`, for a kernel launch, which may record events: these are distrusted.
template <class... Arguments>
CUresult launch(const Call<CUresult(const CUlaunchConfig*, Arguments...)>& call, const CUlaunchConfig* launch,
                std::type_identity_t<Arguments>... arguments) noexcept {
  if (launch != nullptr && launch->numAttrs != 0) events::distrust_launch(launch);
  return call_with_retry(call, 0, launch, arguments...);
}
// The same for a graph node, which may record an event or launch a kernel.
template <class... Arguments>
CUresult node(const Call<CUresult(Arguments...)>& call, const CUgraphNodeParams* node,
              std::type_identity_t<Arguments>... arguments) noexcept {
  events::distrust_node(node);
  return call_with_retry(call, 0, arguments...);
}
// cuMemGetInfo: adds the plan's idle memory on the current device to the driver's free memory.
CUresult info(const Call<CUresult(size_t*, size_t*)>& call, size_t* free, size_t* total) noexcept;
}  // namespace device_memory

// Streams that begin and end. All calls are forwarded. The heaps learn whether the program creates streams that
// synchronize with the legacy stream. The heaps and the recorder are told of the end of a stream before the call, since
// CUDA may reuse its handle at once.
namespace streams {
// The program has created a stream with these flags.
void created(CUstream stream, unsigned flags) noexcept;
// For a function that creates a stream; calls it as device_memory::call_with_retry does.
template <class... Arguments>
CUresult create(const Call<CUresult(CUstream*, unsigned, Arguments...)>& call, CUstream* stream, unsigned flags,
                std::type_identity_t<Arguments>... arguments) noexcept {
  const CUresult result = device_memory::call_with_retry(call, 0, stream, flags, arguments...);
  if (result == CUDA_SUCCESS) created(*stream, flags);
  return result;
}
CUresult create_green(const Call<CUresult(CUstream*, struct CUgreenCtx_st*, unsigned, int)>& call, CUstream* stream,
                      struct CUgreenCtx_st* context, unsigned flags, int priority) noexcept;
CUresult destroy(const Call<CUresult(CUstream)>& call, CUstream stream) noexcept;
}  // namespace streams

// cuGetProcAddress. Forwarded; if the driver's answer is the original function of a hook, the hook's exported function
// is returned instead, except to a library that the hook itself calls (`belongs_to`).
namespace lookup {
CUresult get_proc_address(const Call<CUresult(const char*, void**, int, cuuint64_t)>& call, const char* name,
                          void** address, int version, cuuint64_t flags) noexcept;
CUresult get_proc_address_v2(
    const Call<CUresult(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*)>& call, const char* name,
    void** address, int version, cuuint64_t flags, CUdriverProcAddressQueryResult* status) noexcept;
}  // namespace lookup

// The CUDA runtime's functions (runtime.cpp). A request or free on which the runtime would only call the driver is
// answered by the heap, with 0 for success. All others are forwarded, and the runtime then calls the driver's hooks.
namespace runtime {
// Only forwards the call. As for every hook, the caller is noted for the hooks beneath (CallerScope).
template <class... Arguments>
RuntimeResult forward(const Call<RuntimeResult(Arguments...)>& call, Arguments... arguments) noexcept {
  return call.original(arguments...);
}
RuntimeResult alloc_async(const Call<RuntimeResult(void**, size_t, CUstream)>& call, void** out, size_t bytes,
                          CUstream stream, DefaultStream default_stream) noexcept;
RuntimeResult alloc_from_pool(const Call<RuntimeResult(void**, size_t, CUmemoryPool, CUstream)>& call, void** out,
                              size_t bytes, CUmemoryPool pool, CUstream stream, DefaultStream default_stream) noexcept;
RuntimeResult free_async(const Call<RuntimeResult(void*, CUstream)>& call, void* at, CUstream stream,
                         DefaultStream default_stream) noexcept;
RuntimeResult set_device(const Call<RuntimeResult(int)>& call, int device) noexcept;
}  // namespace runtime

}  // namespace stalloc::hooks
