#include "interpose/torch/waiting_streams.h"

#include <algorithm>
#include <new>
#include <utility>

#include "interpose/base/cuda_driver.h"

namespace stalloc::torch {
namespace {

// Work of a capture's thread must not count as part of it.
CUresult create_stream(CUstream* stream) noexcept {
  static const auto create =
      reinterpret_cast<CUresult (*)(CUstream*, unsigned)>(cuda_driver::symbol("cuStreamCreate"));
  static const auto exchange = reinterpret_cast<CUresult (*)(CUstreamCaptureMode*)>(
      cuda_driver::symbol("cuThreadExchangeStreamCaptureMode"));
  if (create == nullptr || exchange == nullptr) return CUDA_ERROR_NOT_FOUND;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  exchange(&mode);
  const CUresult result = create(stream, CU_STREAM_NON_BLOCKING);
  exchange(&mode);
  return result;
}

}  // namespace

// The one for just these users, else one that nobody uses yet, else the one that was used longest ago.
WaitingStreams::Kind& WaitingStreams::kind_of(std::vector<CUstream> users) {
  std::sort(users.begin(), users.end());
  Kind* oldest = &kinds_.front();
  for (Kind& kind : kinds_) {
    if (kind.users == users) return kind;
    if (kind.used_at < oldest->used_at) oldest = &kind;
  }
  oldest->users = std::move(users);
  return *oldest;
}

CUresult WaitingStreams::make(serve::Driver& driver, Kind* kind) noexcept {
  if (kind->event == nullptr) {
    if (const CUresult result = driver.create_event(&kind->event); result != CUDA_SUCCESS) return result;
  }
  return kind->stream == nullptr ? create_stream(&kind->stream) : CUDA_SUCCESS;
}

CUresult WaitingStreams::behind(serve::Driver& driver, std::span<const CUstream> users, CUstream* waiting) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    Kind& kind = kind_of({users.begin(), users.end()});
    kind.used_at = ++clock_;
    if (const CUresult result = make(driver, &kind); result != CUDA_SUCCESS) return result;
    for (const CUstream user : kind.users) {
      // An event may be recorded anew as soon as somebody waits for it: who waits keeps what it was.
      if (const CUresult result = driver.record_event(kind.event, user); result != CUDA_SUCCESS) return result;
      if (const CUresult result = driver.wait_event(kind.stream, kind.event); result != CUDA_SUCCESS) return result;
    }
    *waiting = kind.stream;
    return CUDA_SUCCESS;
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

}  // namespace stalloc::torch
