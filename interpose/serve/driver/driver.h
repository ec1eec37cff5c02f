// SPDX-License-Identifier: Apache-2.0
// The interface to the CUDA driver: all driver calls that serving needs, and nothing else. RealDriver (driver_real.h)
// implements it by the original driver functions, and FakeDriver (tests/unit/serve/fake_driver.h) for tests.
//
// Contract of every function: it returns CUDA_SUCCESS and has done what it says, or another code and has changed
// nothing. Thread-safe. Nothing throws. Only `free_plain` and `synchronize_context` wait for work on the device. The
// real implementation makes each call except `free_plain` with the thread's capture mode relaxed
// (cuThreadExchangeStreamCaptureMode), so that a capture of the program is neither broken nor joined.
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
  virtual CUresult granularity(int device, std::size_t* bytes) = 0;  // the recommended one for pinned device memory
  virtual CUresult reserve(CUdeviceptr* base, std::size_t bytes) = 0;
  virtual CUresult unreserve(CUdeviceptr base, std::size_t bytes) = 0;  // pre: nothing is mapped there
  virtual CUresult create(CUmemGenericAllocationHandle* handle, std::size_t bytes, int device) = 0;
  virtual CUresult release(CUmemGenericAllocationHandle handle) = 0;
  virtual CUresult map(CUdeviceptr at, std::size_t bytes, CUmemGenericAllocationHandle handle) = 0;  // the whole handle
  virtual CUresult unmap(CUdeviceptr at, std::size_t bytes) = 0;  // pre: no pending work uses the range
  // Gives the devices read and write access to the whole range. Pre: all of it is mapped.
  virtual CUresult set_access(CUdeviceptr at, std::size_t bytes, std::span<const int> devices) = 0;
  // The free and total bytes of the current context's device.
  virtual CUresult memory_info(std::size_t* free, std::size_t* total) = 0;

  // CUDA's own memory, in the current context. `free_plain` is cuMemFree as the program itself would call it: it waits
  // for all work of the context, keeps the thread's capture mode, and returns what CUDA returns. (On an H200 it fails
  // and invalidates the capture while another thread captures in global mode, and does neither in the other modes.)
  virtual CUresult allocate_plain(CUdeviceptr* at, std::size_t bytes) = 0;
  virtual CUresult free_plain(CUdeviceptr at) = 0;
  // `export_handle` returns a file descriptor for the memory of a handle, which the caller owns and any process can
  // use. The handle must have been created for sharing. `import_handle` returns a handle for such a descriptor, which
  // the caller still owns; call `release` for the handle.
  virtual CUresult export_handle(CUmemGenericAllocationHandle handle, int* file) = 0;
  virtual CUresult import_handle(int file, CUmemGenericAllocationHandle* handle) = 0;
  // Makes CUDA's own pools of the device release the memory that they keep and that is not in use.
  virtual CUresult trim_pools(int device) = 0;

  // Contexts of the calling thread.
  virtual CUresult current_context(CUcontext* context) = 0;  // null: the thread has none
  virtual CUresult push_context(CUcontext context) = 0;
  virtual CUresult pop_context() = 0;  // undoes the thread's latest push_context
  // The context of `stream`; for a default stream (legacy or per thread), the calling thread's current context. Fails
  // for a stream that was destroyed (program_streams.h), and so does `is_capturing`. The others must not be called
  // with such a stream.
  virtual CUresult stream_context(CUstream stream, CUcontext* context) = 0;

  // Order. Events have no timing. CU_STREAM_PER_THREAD means the calling thread's own stream; both default streams are
  // those of the current context. `is_capturing` also returns an error if `stream` is the legacy stream and a blocking
  // stream of its context is being captured. For such a stream, and for one that is being captured, `record_event` and
  // `wait_event` return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED. No capture begins between that check and the call
  // (capture_gate.h).
  virtual CUresult is_capturing(CUstream stream, bool* capturing) = 0;
  virtual CUresult create_event(CUevent* event) = 0;
  virtual CUresult destroy_event(CUevent event) = 0;
  virtual CUresult record_event(CUevent event, CUstream stream) = 0;
  virtual CUresult wait_event(CUstream stream, CUevent event) = 0;
  virtual CUresult query_event(CUevent event) = 0;  // CUDA_ERROR_NOT_READY while the event is pending
  // CUDA_SUCCESS if the stream has no work, and CUDA_ERROR_NOT_READY if it has. Fails while the stream is being
  // captured, and for the legacy stream while a blocking stream is.
  virtual CUresult query_stream(CUstream stream) = 0;
  // Waits for all work of the current context. Breaks every capture in it: only for the end of a context.
  virtual CUresult synchronize_context() = 0;
};

// Makes `context` the calling thread's current context while this object exists. `ok` is false if the driver refused.
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

// The free bytes of the device of `context`, whatever the thread's current context is. Nothing if the driver fails.
inline std::optional<std::uint64_t> free_bytes_of_device(Driver& driver, CUcontext context) {
  std::size_t free = 0;
  std::size_t total = 0;
  const ContextScope scope(driver, context);
  if (!scope.ok() || driver.memory_info(&free, &total) != CUDA_SUCCESS) return std::nullopt;
  return free;
}

}  // namespace stalloc::serve
