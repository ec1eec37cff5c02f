// SPDX-License-Identifier: Apache-2.0
#include "interpose/session/captures.h"

namespace stalloc {

void Captures::note_lookup(std::string_view symbol) noexcept {
  if (symbol.starts_with("cuStreamBegin")) gate_.may_begin_unobserved();
}

Captures::Status Captures::status_by_driver(CUstream stream) const noexcept {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (cuda_.capture_status(stream, &status) != CUDA_SUCCESS) return Status::Unknown;
  return status == CU_STREAM_CAPTURE_STATUS_NONE ? Status::Free : Status::Captured;
}

CUresult Captures::permission_by_driver() const noexcept {
  return cuda_.trim_nothing(cuda_.default_pool(cuda_.current_device()));
}

}  // namespace stalloc
