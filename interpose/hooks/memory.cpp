// SPDX-License-Identifier: Apache-2.0
// Allocations and frees: recorded in trace mode, served by a heap if there is one, else forwarded.
#include <algorithm>
#include <optional>

#include "interpose/base/loader.h"
#include "interpose/hooks/actions.h"
#include "interpose/hooks/allocation.h"
#include "interpose/torch/integration.h"
#include "plan/communication.h"

namespace stalloc::hooks::memory {
namespace {

using record::Recorder;
using trace::EventKind;

// cuMemAlloc and cuMemFree are ordered with all streams and belong to none; they are recorded on the legacy stream.
StreamKey no_stream() { return key_of(nullptr, DefaultStream::Legacy); }

record::TracedCall event_of(EventKind kind, CUdeviceptr address, std::size_t bytes, const StreamKey& stream) {
  record::TracedCall event;
  event.kind = kind;
  event.device = std::max(Session::cuda().current_device(), 0);
  event.address = address;
  event.size = bytes;
  event.stream = stream;
  event.caller = CallerScope::outermost();
  return event;
}

// For STALLOC_PLAN_STRICT, when the plan cannot be used.
CUresult refuse(CUdeviceptr* out) {
  *out = 0;
  return CUDA_ERROR_NOT_PERMITTED;
}

// Lets CUDA serve a request, and counts it. `heap` is the heap of `context`; null: there is none, or it serves no
// requests from this pool.
template <class Original>
CUresult allocate_by_cuda(Heaps& heaps, CUcontext context, serve::Heap* heap, const Allocation& allocation,
                          CUdeviceptr* out, Original original) {
  if (heap != nullptr && heap->refuses()) return refuse(out);
  if (heaps.is_being_reset(context)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  // A captured request allocates only when its graph is launched, and its memory then belongs to no pool.
  const bool captured =
      allocation.kind != EventKind::Alloc && Session::captures().may_be_captured(allocation.stream.handle);
  const CUresult result = device_memory::call_until_served(allocation.bytes, original);
  if (result != CUDA_SUCCESS || captured) return result;
  if (allocation.kind != EventKind::Alloc) {
    heaps.note_unplanned(heap, *out, allocation.bytes);
  } else if (heap != nullptr) {
    heap->note_unplanned_sync(*out, allocation.bytes);
  }
  return result;
}

// Whether a request must get CUDA's own memory. Memory of cuMemAlloc may be exported to other processes or registered
// with network cards, which CUDA allows only for its own memory. So communication libraries always get CUDA's memory,
// and so does every caller of cuMemAlloc while a run is recorded; the plan then leaves exported memory to CUDA. Without
// a plan, nobody knows which memory will be exported. If PyTorch's tensors are served through the door, only buffers of
// libraries remain, which are few and often made to be exported (custom all-reduces).
bool is_left_to_cuda(const Allocation& allocation) {
  if (allocation.kind != EventKind::Alloc) return false;
  if (torch::is_native_allocator(CallerScope::outermost())) return true;
  if (Session::get().recorder() != nullptr) return true;
  if (torch::is_door_open() && Session::get().options().mode == Mode::Dynamic) return true;
  loader::Module caller;
  return loader::find_module(CallerScope::outermost(), &caller) && caller.path != nullptr &&
         plan::is_communication_library(caller.path);
}

// Sets the request's pool as the heap knows it. False if requests from that pool are not served.
bool resolve_pool(Heaps& heaps, const serve::Heap& heap, Allocation* allocation) {
  if (allocation->kind == EventKind::AllocAsync) return heaps.resolve_current_pool(heap, &allocation->pool);
  return allocation->kind == EventKind::Alloc || heaps.resolve_pool(heap, &allocation->pool);
}

template <class Original>
CUresult allocate_served(Heaps* heaps, CUcontext context, Allocation allocation, CUdeviceptr* out, Original original) {
  serve::Heap* heap = heaps == nullptr ? nullptr : heaps->find_or_create(context);
  if (Session::refuses() || (heaps != nullptr && heaps->refuses())) return refuse(out);
  if (heaps == nullptr) return original();
  if (heap == nullptr || !resolve_pool(*heaps, *heap, &allocation)) {
    return allocate_by_cuda(*heaps, context, nullptr, allocation, out, original);
  }
  const bool declined = Declined::by_heap() || is_left_to_cuda(allocation);
  const auto address = declined ? std::nullopt : serve_allocation(*heap, allocation);
  if (address) {
    *out = *address;
    return CUDA_SUCCESS;
  }
  return allocate_by_cuda(*heaps, context, heap, allocation, out, original);
}

template <class Original>
CUresult allocate(const Allocation& allocation, CUdeviceptr* out, Original original) {
  Session& session = Session::get();
  if (out == nullptr || allocation.bytes == 0) return original();
  if (!session.active()) return Session::refuses() ? refuse(out) : original();
  // Without a context the driver returns an error, upon which the runtime creates a context and calls again.
  const CUcontext context = Session::cuda().current_context();
  if (context == nullptr || Session::cuda().has_failed()) return original();
  const bool captured =
      allocation.kind != EventKind::Alloc && Session::captures().may_be_captured(allocation.stream.handle);
  if (!captured) {
    if (const CUresult result = Session::captures().permission(); result != CUDA_SUCCESS) return result;
  }
  if (session.figures_wanted()) session.log_requested_figures();
  Recorder* recorder = session.recorder();
  // PyTorch's own allocator requests segments; the tensors in them are recorded one by one.
  if (recorder == nullptr || torch::is_native_allocator(CallerScope::outermost()))
    return allocate_served(session.heaps(), context, allocation, out, original);
  record::TracedCall event = event_of(allocation.kind, 0, allocation.bytes, allocation.stream);
  event.captured = captured;
  const CUresult result = allocate_served(session.heaps(), context, allocation, out, original);
  event.failed = result != CUDA_SUCCESS;
  event.address = event.failed ? 0 : *out;
  recorder->record(event);
  return result;
}

// `give_back` frees the block in the heap that owns its address. If a closed heap does not know the address, CUDA is
// called, since the driver may have reused that heap's addresses.
template <class Original, class GiveBack>
CUresult release_in_context(EventKind kind, CUdeviceptr at, const StreamKey& stream, Original original,
                            GiveBack give_back) {
  Session& session = Session::get();
  const bool captured = kind != EventKind::Free && Session::captures().may_be_captured(stream.handle);
  if (!captured) {
    if (const CUresult result = Session::captures().permission(); result != CUDA_SUCCESS) return result;
  }
  Recorder* recorder = session.recorder();
  if (recorder != nullptr && !torch::is_native_allocator(CallerScope::outermost())) {
    recorder->record(event_of(kind, at, 0, stream));
  }
  Heaps* heaps = session.heaps();
  if (heaps == nullptr) return original();
  if (serve::Heap* heap = heaps->find_owner(at)) {
    if (captured && Session::cuda().is_capture_invalidated(stream.handle)) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    const CUresult result = give_back(*heap);
    // A free on the legacy stream during the capture of a blocking stream must invalidate that capture, as CUDA's does.
    const bool implicit = result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    return implicit || (result != CUDA_SUCCESS && heap->is_closed()) ? original() : result;
  }
  const Heaps::Unplanned freed = heaps->find_unplanned(at);
  const CUresult result = original();
  if (result == CUDA_SUCCESS && freed.heap != nullptr) freed.heap->note_original_freed(at, freed.number);
  return result;
}

// A free needs a current context only if it names a default stream; otherwise stream and address determine the context.
// If no context is current then, the heap's context is made current for the free.
template <class Original, class GiveBack>
CUresult release(EventKind kind, CUdeviceptr at, const StreamKey& stream, Original original, GiveBack give_back) {
  Session& session = Session::get();
  if (!session.active() || at == 0) return original();
  if (!Session::cuda().has_failed()) return release_in_context(kind, at, stream, original, give_back);
  const bool needs_context = kind != EventKind::Free && stream.is_default();
  if (needs_context || Session::cuda().current_context() != nullptr) return original();
  Heaps* heaps = session.heaps();
  const serve::Heap* heap = heaps == nullptr ? nullptr : heaps->find_owner(at);
  if (heap == nullptr) return original();
  const serve::ContextScope scope(heaps->driver(), heap->context());
  if (!scope.ok() || Session::cuda().has_failed()) return original();
  return release_in_context(kind, at, stream, original, give_back);
}

}  // namespace

CUresult alloc(const Call<CUresult(CUdeviceptr*, size_t)>& call, CUdeviceptr* out, size_t bytes) noexcept {
  return allocate({EventKind::Alloc, bytes, no_stream()}, out, [&] { return call.original(out, bytes); });
}

CUresult alloc_async(const Call<CUresult(CUdeviceptr*, size_t, CUstream)>& call, CUdeviceptr* out, size_t bytes,
                     CUstream stream, DefaultStream default_stream) noexcept {
  return allocate({EventKind::AllocAsync, bytes, key_of(stream, default_stream)}, out,
                  [&] { return call.original(out, bytes, stream); });
}

CUresult alloc_from_pool(const Call<CUresult(CUdeviceptr*, size_t, CUmemoryPool, CUstream)>& call, CUdeviceptr* out,
                         size_t bytes, CUmemoryPool pool, CUstream stream, DefaultStream default_stream) noexcept {
  return allocate({EventKind::AllocFromPool, bytes, key_of(stream, default_stream), pool}, out,
                  [&] { return call.original(out, bytes, pool, stream); });
}

CUresult free(const Call<CUresult(CUdeviceptr)>& call, CUdeviceptr at) noexcept {
  return release(
      EventKind::Free, at, no_stream(), [&] { return call.original(at); },
      [&](serve::Heap& heap) { return heap.free_sync(at); });
}

CUresult free_async(const Call<CUresult(CUdeviceptr, CUstream)>& call, CUdeviceptr at, CUstream stream,
                    DefaultStream default_stream) noexcept {
  const StreamKey key = key_of(stream, default_stream);
  return release(
      EventKind::FreeAsync, at, key, [&] { return call.original(at, stream); },
      [&](serve::Heap& heap) { return heap.free_async(at, key); });
}

CUresult ipc_export(const Call<CUresult(CUipcMemHandle*, CUdeviceptr)>& call, CUipcMemHandle* handle,
                    CUdeviceptr at) noexcept {
  Session& session = Session::get();
  if (Recorder* recorder = session.active() ? session.recorder() : nullptr) {
    recorder->record(event_of(EventKind::IpcExport, at, 0, no_stream()));
  }
  return call.original(handle, at);
}

}  // namespace stalloc::hooks::memory
