// SPDX-License-Identifier: Apache-2.0
// The narrow interface to the CUDA driver: everything the serving half asks of it, and nothing else.
// Real implementation: driver_real.cpp (the original driver functions). Fake: tests/unit/serve/fake_driver.h.
//
// Contract for every function: returns CUDA_SUCCESS and has done what it says, or another code and has changed
// nothing. Thread-safe. The real implementation makes each call but `free_plain` with the thread's capture mode relaxed
// (cuThreadExchangeStreamCaptureMode), so that a capture of the host's is neither broken nor joined. No call throws,
// and none but `free_plain` and `synchronize_context` waits for work on the device.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace stalloc::serve {

class Driver {
 public:
  virtual ~Driver() = default;

  // Virtual memory. Sizes and addresses are multiples of the granularity.
  virtual CUresult granularity(int device, std::size_t* bytes) = 0;  // recommended, of pinned device memory
  virtual CUresult reserve(CUdeviceptr* base, std::size_t bytes) = 0;
  virtual CUresult unreserve(CUdeviceptr base, std::size_t bytes) = 0;  // post: nothing may be mapped there before
  virtual CUresult create(CUmemGenericAllocationHandle* handle, std::size_t bytes, int device) = 0;
  virtual CUresult release(CUmemGenericAllocationHandle handle) = 0;
  virtual CUresult map(CUdeviceptr at, std::size_t bytes, CUmemGenericAllocationHandle handle) = 0;  // whole handle
  virtual CUresult unmap(CUdeviceptr at, std::size_t bytes) = 0;  // pre: no pending work may touch the range
  // Read and write access for every device named, for the whole range; pre: all of it is mapped.
  virtual CUresult set_access(CUdeviceptr at, std::size_t bytes, std::span<const int> devices) = 0;
  virtual CUresult memory_info(std::size_t* free, std::size_t* total) = 0;  // of the current context's device

  // CUDA's own memory, of the current context. `free_plain` is cuMemFree as the program itself would call it: it waits
  // for all work of the context, keeps the thread's capture mode, and returns what CUDA returns (an H200 refuses it,
  // and invalidates the capture, while another thread captures in global mode; it does neither in the other modes).
  virtual CUresult allocate_plain(CUdeviceptr* at, std::size_t bytes) = 0;
  virtual CUresult free_plain(CUdeviceptr at) = 0;
  // A file descriptor, the caller's, that names a handle's memory in any process: only of a handle that was created to
  // be shared. And the handle for such a descriptor, which stays the caller's; the memory is held until its `release`.
  virtual CUresult export_handle(CUmemGenericAllocationHandle handle, int* file) = 0;
  virtual CUresult import_handle(int file, CUmemGenericAllocationHandle* handle) = 0;
  // CUDA's own pools of the device give back what they keep and nobody uses.
  virtual CUresult trim_pools(int device) = 0;

  // Contexts of the calling thread.
  virtual CUresult current_context(CUcontext* context) = 0;  // null when the thread has none
  virtual CUresult push_context(CUcontext context) = 0;
  virtual CUresult pop_context() = 0;  // pre: undoes the thread's latest push_context
  // The context `stream` belongs to; for the default streams (legacy, per thread) the calling thread's current one.
  virtual CUresult stream_context(CUstream stream, CUcontext* context) = 0;
  virtual CUresult stream_flags(CUstream stream, unsigned* flags) = 0;  // as it was created; no default stream

  // Order. Events carry no timing. CU_STREAM_PER_THREAD names the calling thread's own stream, both default streams
  // those of the current context. is_capturing says an error too when `stream` is the legacy stream and another,
  // blocking stream of its context is being captured. record_event and wait_event refuse such streams, and those that
  // are being captured, with CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: no capture begins between the question and the call
  // (capture_gate.h).
  virtual CUresult is_capturing(CUstream stream, bool* capturing) = 0;
  virtual CUresult create_event(CUevent* event) = 0;
  virtual CUresult destroy_event(CUevent event) = 0;
  virtual CUresult record_event(CUevent event, CUstream stream) = 0;
  virtual CUresult wait_event(CUstream stream, CUevent event) = 0;
  virtual CUresult query_event(CUevent event) = 0;  // CUDA_ERROR_NOT_READY while pending
  // CUDA_SUCCESS when the stream has no work, CUDA_ERROR_NOT_READY while it has. Refused while it is being captured,
  // and for the legacy stream while a stream that synchronises with it is.
  virtual CUresult query_stream(CUstream stream) = 0;
  // Waits for all work of the current context. Breaks every capture in it: only for the end of a context.
  virtual CUresult synchronize_context() = 0;
};

// Makes `context` the calling thread's current one while it lives. `ok` is false when the driver refused.
class ContextScope {
 public:
  ContextScope(Driver& driver, CUcontext context) : driver_(driver) {
    CUcontext current = nullptr;
    ok_ = driver_.current_context(&current) == CUDA_SUCCESS;
    if (!ok_ || current == context) return;
    ok_ = pushed_ = driver_.push_context(context) == CUDA_SUCCESS;
  }
  ~ContextScope() {
    if (pushed_) driver_.pop_context();
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  [[nodiscard]] bool ok() const { return ok_; }

 private:
  Driver& driver_;
  bool ok_ = false;
  bool pushed_ = false;
};

// The bytes that the device of `context` has free, whatever context the thread has; nothing when the driver does not
// say.
inline std::optional<std::uint64_t> free_bytes_of_device(Driver& driver, CUcontext context) {
  std::size_t free = 0;
  std::size_t total = 0;
  const ContextScope scope(driver, context);
  if (!scope.ok() || driver.memory_info(&free, &total) != CUDA_SUCCESS) return std::nullopt;
  return free;
}

}  // namespace stalloc::serve
