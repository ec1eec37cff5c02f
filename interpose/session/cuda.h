// SPDX-License-Identifier: Apache-2.0
// Queries that the session and the hooks make to the CUDA driver. The heaps' interface is serve/driver/driver.h.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <mutex>

#include "interpose/serve/driver/relaxed_capture.h"
#include "interpose/session/driver_function.h"
#include "plan/files/trace_file.h"

namespace stalloc {

// Only `synchronize_memory_operations`, `disable_peer`, `create_stream` and `record_context` change anything. If the
// driver cannot answer, because it is not loaded, lacks the function or refuses, the documented default is returned.
// Thread-safe; only `describe_device` throws.
class Cuda {
 public:
  // Uses the driver functions that `find` returns.
  constexpr explicit Cuda(FindDriverFunction find) noexcept : find_(find) {}
  Cuda(const Cuda&) = delete;
  Cuda& operator=(const Cuda&) = delete;

  // Looks up all functions that this object calls. A look-up takes the dynamic loader's lock, which a thread may hold
  // while it waits for another one that calls CUDA; so it is done early. Pre: the driver is loaded.
  void find_all() const noexcept;
  // The driver's function of that exported name; null: none.
  [[nodiscard]] void* symbol(const char* name) const noexcept { return find_(name); }
  [[nodiscard]] FindDriverFunction finder() const noexcept { return find_; }

  // Contexts and devices.
  // The calling thread's context; null: none.
  [[nodiscard]] CUcontext current_context() const noexcept {
    CUcontext context = nullptr;
    return cuCtxGetCurrent_(&context) == CUDA_SUCCESS ? context : nullptr;
  }
  // True if an error on the device has broken the thread's context, or if there is none: every call that uses it then
  // fails. Of the driver's functions that show this, the one used here is among the fastest (20 ns, driver 580).
  [[nodiscard]] bool has_failed() const noexcept {
    const auto ask = cuCtxGetStreamPriorityRange_.get();
    int least = 0;
    int greatest = 0;
    return ask != nullptr && ask(&least, &greatest) != CUDA_SUCCESS;
  }
  // The id of the thread's context, which is never given to another context. 0: there is no context, it was destroyed,
  // or the driver has no ids (CUDA 11).
  [[nodiscard]] std::uint64_t current_context_id() const noexcept;
  [[nodiscard]] int device_count() const noexcept;                  // 0: unknown
  [[nodiscard]] int current_device() const noexcept;                // of the thread's context; -1: none
  [[nodiscard]] int device_of(CUcontext context) const noexcept;    // -1: unknown
  [[nodiscard]] bool is_primary_active(int device) const noexcept;  // false: inactive or unknown
  // The context that a program makes current to use a green context; null: unknown.
  [[nodiscard]] CUcontext context_of(CUgreenCtx_st* green) const noexcept {
    CUcontext context = nullptr;
    return cuCtxFromGreenCtx_(&context, green) == CUDA_SUCCESS ? context : nullptr;
  }
  // The device's primary context; null: it is not active (it is not created then), or this cannot be determined.
  [[nodiscard]] CUcontext primary_context(int device) const noexcept;
  // Whether `context` is the device's primary context. Creates none.
  [[nodiscard]] bool is_primary_context(CUcontext context, int device) const noexcept;
  [[nodiscard]] trace::Device describe_device(int device) const;  // may throw std::bad_alloc
  // From now on, synchronous memory operations in that context are complete when their function returns
  // (CU_CTX_SYNC_MEMOPS). False: the driver does not support this (before CUDA 12.1) or refused.
  bool synchronize_memory_operations(CUcontext context) noexcept;
  // Ends the current context's access to the memory of `peer`.
  void disable_peer(CUcontext peer) const noexcept { cuCtxDisablePeerAccess_(peer); }

  // Pools.
  [[nodiscard]] CUmemoryPool default_pool(int device) const noexcept;  // null: none
  [[nodiscard]] CUmemoryPool current_pool(int device) const noexcept;  // the pool of cuMemAllocAsync; null: none
  // The pool of memory that CUDA served; null: none or unknown.
  [[nodiscard]] CUmemoryPool pool_of(CUdeviceptr at) const noexcept {
    CUmemoryPool pool = nullptr;
    return cuPointerGetAttribute_(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at) == CUDA_SUCCESS ? pool : nullptr;
  }
  // Whether kernels of `device` may access the pool's memory.
  [[nodiscard]] bool has_access(CUmemoryPool pool, int device) const noexcept;
  // In bytes; 0, CUDA's default, if it cannot be determined.
  [[nodiscard]] std::uint64_t release_threshold(CUmemoryPool pool) const noexcept;
  // Trims the pool to more than it can hold. This changes nothing, and is refused in the same situations as an
  // allocation. CUDA_SUCCESS if `pool` is null.
  [[nodiscard]] CUresult trim_nothing(CUmemoryPool pool) const noexcept;

  // Streams and addresses.
  [[nodiscard]] CUresult capture_status(CUstream stream, CUstreamCaptureStatus* status) const noexcept {
    return cuStreamIsCapturing_(stream, status);
  }
  // Whether the capture is invalid because of a call that it forbids. Pre: the stream is being captured.
  [[nodiscard]] bool is_capture_invalidated(CUstream stream) const noexcept {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return capture_status(stream, &status) == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  }
  // The context of a stream; null: unknown. For a default stream, the thread's current one.
  [[nodiscard]] CUcontext context_of_stream(CUstream stream) const noexcept;
  // Creates a stream of the current context that does not synchronize with the legacy stream. Works also during
  // captures.
  CUresult create_stream(CUstream* stream) const noexcept;
  // Records an event of `context` behind all work of that context, also that of streams that were destroyed (seen on an
  // H200, driver 580). Breaks every capture in the context. CUDA_ERROR_NOT_SUPPORTED before CUDA 12.5.
  CUresult record_context(CUevent event, CUcontext context) const noexcept { return cuCtxRecordEvent_(context, event); }
  // The driver's own answer, which for mapped memory is about the whole handle.
  [[nodiscard]] CUresult pointer_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr at) const noexcept {
    return cuPointerGetAttribute_(data, attribute, at);
  }

  // While the result lives, captures neither forbid the calling thread's calls nor are invalidated by them.
  [[nodiscard]] auto relax_captures() const noexcept {
    return serve::RelaxedCapture(cuThreadExchangeStreamCaptureMode_);
  }

 private:
  [[nodiscard]] std::uint64_t pool_attribute(CUmemoryPool pool, CUmemPool_attribute attribute) const noexcept;

  alignas(64) FindDriverFunction find_;
#define STALLOC_DRIVER_FUNCTION(name, symbol, parameters) DriverFunction<CUresult parameters> name##_{find_, symbol};
#include "interpose/session/cuda.def"
#undef STALLOC_DRIVER_FUNCTION
  std::mutex flags_mutex_;  // guards reading a context's flags and writing them changed
};

}  // namespace stalloc
