#include "interpose/session/capture.h"

#include <atomic>

#include "interpose/base/cuda_driver.h"

namespace stalloc::capture {
namespace {

// Set before the capture begins. Whoever uses the captured stream knows of it by the program's own synchronisation, so
// that relaxed order is enough.
std::atomic<bool> any{false};

}  // namespace

void seen() noexcept { any.store(true, std::memory_order_relaxed); }

void looked_up(std::string_view symbol) noexcept {
  if (symbol.starts_with("cuStreamBegin")) seen();
}

CUresult status(CUstream stream, CUstreamCaptureStatus* status) noexcept {
  if (!any.load(std::memory_order_relaxed)) {
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
  }
  static const auto ask =
      reinterpret_cast<CUresult (*)(CUstream, CUstreamCaptureStatus*)>(cuda_driver::symbol("cuStreamIsCapturing"));
  return ask == nullptr ? CUDA_ERROR_NOT_SUPPORTED : ask(stream, status);
}

}  // namespace stalloc::capture
