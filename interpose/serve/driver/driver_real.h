// SPDX-License-Identifier: Apache-2.0
// The driver interface over the original functions of libcuda.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <functional>
#include <type_traits>

#include "interpose/serve/driver/capture_gate.h"
#include "interpose/serve/driver/driver.h"

namespace stalloc::serve {

// The original functions, by the names and with the parameters of driver_functions.def. All must be set.
struct DriverFunctions {
#define STALLOC_DRIVER_FUNCTION(name, symbol, parameters) \
  std::add_pointer_t<CUresult CUDAAPI parameters> name = nullptr;
#include "interpose/serve/driver/driver_functions.def"
#undef STALLOC_DRIVER_FUNCTION
};

// The pools that the program has created. Thread-safe.
class CreatedPools {
 public:
  virtual ~CreatedPools() = default;
  // Calls `visit` for each pool of the device. No pool is destroyed during the call.
  virtual void each_of(int device, const std::function<void(CUmemoryPool)>& visit) = 0;
};

// Thread-safe: it has no state besides the functions. `gate` is the gate that the hooks of captures use; it must
// outlive the driver.
class RealDriver final : public Driver {
 public:
  // What created memory can be used for, if the device supports it.
  struct Purpose {
    bool rdma = true;      // GPUDirect RDMA; mapping the memory for the first time then takes longer
    bool sharing = false;  // `export_handle`
  };
  RealDriver(const DriverFunctions& functions, CaptureGate& gate, const Purpose& purpose)
      : call_(functions), gate_(&gate), purpose_(purpose) {}

  // `trim_pools` also trims these pools. They must outlive the driver.
  void know_pools(CreatedPools& pools) noexcept { pools_ = &pools; }

  CUresult granularity(int device, std::size_t* bytes) override;
  CUresult reserve(CUdeviceptr* base, std::size_t bytes) override;
  CUresult unreserve(CUdeviceptr base, std::size_t bytes) override;
  CUresult create(CUmemGenericAllocationHandle* handle, std::size_t bytes, int device) override;
  CUresult release(CUmemGenericAllocationHandle handle) override;
  CUresult map(CUdeviceptr at, std::size_t bytes, CUmemGenericAllocationHandle handle) override;
  CUresult unmap(CUdeviceptr at, std::size_t bytes) override;
  CUresult set_access(CUdeviceptr at, std::size_t bytes, std::span<const int> devices) override;
  CUresult memory_info(std::size_t* free, std::size_t* total) override;
  CUresult allocate_plain(CUdeviceptr* at, std::size_t bytes) override;
  CUresult free_plain(CUdeviceptr at) override;
  CUresult export_handle(CUmemGenericAllocationHandle handle, int* file) override;
  CUresult import_handle(int file, CUmemGenericAllocationHandle* handle) override;
  CUresult trim_pools(int device) override;
  CUresult current_context(CUcontext* context) override;
  CUresult push_context(CUcontext context) override;
  CUresult pop_context() override;
  CUresult stream_context(CUstream stream, CUcontext* context) override;
  CUresult is_capturing(CUstream stream, bool* capturing) override;
  CUresult create_event(CUevent* event) override;
  CUresult destroy_event(CUevent event) override;
  CUresult record_event(CUevent event, CUstream stream) override;
  CUresult wait_event(CUstream stream, CUevent event) override;
  CUresult query_event(CUevent event) override;
  CUresult query_stream(CUstream stream) override;
  CUresult synchronize_context() override;

 private:
  // CUDA_SUCCESS if the library may give the stream work. Pre: the gate is held.
  [[nodiscard]] CUresult check_not_capturing(CUstream stream) const;

  DriverFunctions call_;
  CaptureGate* gate_;
  CreatedPools* pools_ = nullptr;  // null: there are none
  Purpose purpose_;
};

}  // namespace stalloc::serve
