// SPDX-License-Identifier: Apache-2.0
// A driver in which every call succeeds at once and does nothing, so that only the host's own work is measured.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "interpose/base/program_streams.h"
#include "interpose/base/stream_key.h"
#include "interpose/serve/driver/driver.h"

namespace stalloc::bench {

// A stream as PyTorch creates it.
inline StreamKey make_stream(std::size_t number) {
  const auto handle = reinterpret_cast<CUstream>(0x100 * (number + 1));
  note_stream_created(handle, CU_STREAM_NON_BLOCKING);
  return {handle, 0};
}

// Addresses are reserved one behind the other. Events are never over, so no free is known to be complete. Not
// thread-safe: a heap reserves under its lock.
class NothingDriver final : public serve::Driver {
 public:
  static constexpr std::size_t kPage = std::size_t{2} << 20;
  static constexpr std::size_t kDeviceBytes = std::size_t{128} << 30;

  CUresult granularity(int, std::size_t* bytes) override { return *bytes = kPage, CUDA_SUCCESS; }
  CUresult reserve(CUdeviceptr* base, std::size_t bytes) override {
    *base = next_;
    next_ += bytes;
    return CUDA_SUCCESS;
  }
  CUresult unreserve(CUdeviceptr, std::size_t) override { return CUDA_SUCCESS; }
  CUresult create(CUmemGenericAllocationHandle* handle, std::size_t, int) override { return *handle = 1, CUDA_SUCCESS; }
  CUresult release(CUmemGenericAllocationHandle) override { return CUDA_SUCCESS; }
  CUresult map(CUdeviceptr, std::size_t, CUmemGenericAllocationHandle) override { return CUDA_SUCCESS; }
  CUresult unmap(CUdeviceptr, std::size_t) override { return CUDA_SUCCESS; }
  CUresult set_access(CUdeviceptr, std::size_t, std::span<const int>) override { return CUDA_SUCCESS; }
  CUresult memory_info(std::size_t* free, std::size_t* total) override {
    return *free = *total = kDeviceBytes, CUDA_SUCCESS;
  }
  CUresult current_context(CUcontext* context) override { return *context = nullptr, CUDA_SUCCESS; }
  CUresult push_context(CUcontext) override { return CUDA_SUCCESS; }
  CUresult pop_context() override { return CUDA_SUCCESS; }
  CUresult stream_context(CUstream, CUcontext* context) override { return *context = nullptr, CUDA_SUCCESS; }
  CUresult is_capturing(CUstream, bool* capturing) override { return *capturing = false, CUDA_SUCCESS; }
  CUresult create_event(CUevent* event) override { return *event = reinterpret_cast<CUevent>(16), CUDA_SUCCESS; }
  CUresult destroy_event(CUevent) override { return CUDA_SUCCESS; }
  CUresult record_event(CUevent, CUstream) override { return CUDA_SUCCESS; }
  CUresult wait_event(CUstream, CUevent) override { return CUDA_SUCCESS; }
  CUresult query_event(CUevent) override { return CUDA_ERROR_NOT_READY; }
  CUresult query_stream(CUstream) override { return CUDA_ERROR_NOT_READY; }
  CUresult synchronize_context() override { return CUDA_SUCCESS; }
  CUresult allocate_plain(CUdeviceptr* at, std::size_t) override { return *at = 512, CUDA_SUCCESS; }
  CUresult free_plain(CUdeviceptr) override { return CUDA_SUCCESS; }
  CUresult export_handle(CUmemGenericAllocationHandle, int*) override { return CUDA_ERROR_NOT_SUPPORTED; }
  CUresult import_handle(int, CUmemGenericAllocationHandle*) override { return CUDA_ERROR_NOT_SUPPORTED; }
  CUresult trim_pools(int) override { return CUDA_SUCCESS; }

 private:
  CUdeviceptr next_ = CUdeviceptr{1} << 44;
};

}  // namespace stalloc::bench
