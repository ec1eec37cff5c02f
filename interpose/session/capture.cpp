#include "interpose/session/capture.h"

#include "interpose/base/cuda_driver.h"
#include "interpose/session/cuda_query.h"

namespace stalloc::capture {

serve::CaptureGate& gate() noexcept {
  static serve::CaptureGate gate;
  return gate;
}

void looked_up(std::string_view symbol) noexcept {
  if (symbol.starts_with("cuStreamBegin")) gate().began();
}

bool is_capturing(CUstream stream) noexcept {
  if (!gate().may_be_capturing()) return false;
  static const auto ask =
      reinterpret_cast<CUresult (*)(CUstream, CUstreamCaptureStatus*)>(cuda_driver::symbol("cuStreamIsCapturing"));
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return ask == nullptr || ask(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

// Trimming a pool to more than it can hold changes nothing, and is refused just when an allocation is.
CUresult permission() noexcept {
  if (!gate().may_be_capturing()) return CUDA_SUCCESS;
  static const auto trim = reinterpret_cast<CUresult (*)(CUmemoryPool, size_t)>(cuda_driver::symbol("cuMemPoolTrimTo"));
  const CUmemoryPool pool = cuda_query::default_pool(cuda_query::current_device());
  return trim == nullptr || pool == nullptr ? CUDA_SUCCESS : trim(pool, ~size_t{0});
}

}  // namespace stalloc::capture
