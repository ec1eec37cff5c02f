// SPDX-License-Identifier: Apache-2.0
// The runtime's functions, for programs linked with the shared runtime. A request is served here if the runtime would
// only call the driver: the runtime has answered this thread before, and the same context is still current. Like the
// runtime's own function, a success here leaves the runtime's last error unchanged. A request that cannot be served
// here is passed to the runtime, so that the last error is set correctly. In trace mode every call is passed on, since
// the driver's hook records it.
#include <type_traits>

#include "interpose/hooks/actions.h"
#include "interpose/hooks/allocation.h"

namespace stalloc::hooks::runtime {
namespace {

// The context that was current after the runtime's latest answer to this thread. Null: the runtime has not answered
// since the program chose a device, so its next call may change the context.
thread_local CUcontext runtime_context = nullptr;

struct FastPath {
  Heaps* heaps = nullptr;
  serve::Heap* heap = nullptr;  // of the current context; null: call the runtime
};

inline FastPath fast_path() noexcept {
  const CUcontext context = runtime_context;
  if (context == nullptr || Session::cuda().current_context() != context) return {};
  // The driver's hook handles a broken context, and captures that forbid the request. Where captures may begin unseen,
  // that hook asks the driver at each request, so nothing would be saved by serving the request here.
  if (Session::cuda().has_failed() || Session::captures().may_be_active()) return {};
  Heaps* heaps = Session::fast_path_heaps();
  return {heaps, heaps == nullptr ? nullptr : heaps->find(context)};
}

// Not inlined, to keep the code of the fast path small.
template <class... Arguments>
[[gnu::noinline]] RuntimeResult call_runtime(const Call<RuntimeResult(Arguments...)>& call,
                                             std::type_identity_t<Arguments>... arguments) noexcept {
  const RuntimeResult result = call.original(arguments...);
  runtime_context = result == 0 ? Session::cuda().current_context() : nullptr;
  return result;
}

// `resolve` sets the pool as the heap knows it, and returns false if requests from it are not served.
template <class Resolve, class... Arguments>
RuntimeResult allocate(const Call<RuntimeResult(void**, size_t, Arguments...)>& call, const StreamKey& stream,
                       Resolve resolve, void** out, size_t bytes,
                       std::type_identity_t<Arguments>... arguments) noexcept {
  const FastPath by = out == nullptr || bytes == 0 ? FastPath{} : fast_path();
  CUmemoryPool pool = nullptr;
  if (by.heap == nullptr || !resolve(by, &pool)) return call_runtime(call, out, bytes, arguments...);
  if (const auto address = by.heap->allocate(bytes, stream, pool)) {
    *out = reinterpret_cast<void*>(*address);
    return 0;
  }
  const Declined declined;
  return call_runtime(call, out, bytes, arguments...);
}

}  // namespace

RuntimeResult alloc_async(const Call<RuntimeResult(void**, size_t, CUstream)>& call, void** out, size_t bytes,
                          CUstream stream, DefaultStream default_stream) noexcept {
  const auto resolve = [](const FastPath& by, CUmemoryPool* current) {
    return by.heaps->resolve_current_pool(*by.heap, current);
  };
  return allocate(call, key_of(stream, default_stream), resolve, out, bytes, stream);
}

RuntimeResult alloc_from_pool(const Call<RuntimeResult(void**, size_t, CUmemoryPool, CUstream)>& call, void** out,
                              size_t bytes, CUmemoryPool pool, CUstream stream, DefaultStream default_stream) noexcept {
  const auto resolve = [pool](const FastPath& by, CUmemoryPool* named) {
    *named = pool;
    return by.heaps->resolve_pool(*by.heap, named);
  };
  return allocate(call, key_of(stream, default_stream), resolve, out, bytes, pool, stream);
}

RuntimeResult free_async(const Call<RuntimeResult(void*, CUstream)>& call, void* at, CUstream stream,
                         DefaultStream default_stream) noexcept {
  const auto address = reinterpret_cast<CUdeviceptr>(at);
  serve::Heap* heap = fast_path().heap;
  // If another heap owns the memory, this one refuses, and the driver's hook finds the owner.
  if (heap != nullptr && heap->free_async(address, key_of(stream, default_stream), true) == CUDA_SUCCESS) return 0;
  return call_runtime(call, at, stream);
}

RuntimeResult set_device(const Call<RuntimeResult(int)>& call, int device) noexcept {
  runtime_context = nullptr;
  return call.original(device);
}

}  // namespace stalloc::hooks::runtime
