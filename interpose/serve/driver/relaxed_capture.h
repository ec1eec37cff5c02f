// SPDX-License-Identifier: Apache-2.0
// Calls to the driver while the program captures streams.
#pragma once

#include <cuda.h>

namespace stalloc::serve {

// While this object exists, the calling thread may make calls that captures forbid, without breaking a capture or
// joining one. `exchange` is the driver's cuThreadExchangeStreamCaptureMode and must outlive this object. If the driver
// refuses, nothing is changed. Create and destroy it on the same thread.
template <class Exchange>
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Exchange& exchange) noexcept
      : exchange_(exchange), exchanged_(exchange(&mode_) == CUDA_SUCCESS) {}
  ~RelaxedCapture() {
    if (exchanged_) exchange_(&mode_);
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const Exchange& exchange_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // before `exchanged_`, which needs it
  const bool exchanged_;
};

}  // namespace stalloc::serve
