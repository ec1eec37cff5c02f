// SPDX-License-Identifier: Apache-2.0
#include "interpose/torch/context_wait.h"

#include <cstddef>

#include "interpose/session/session.h"

namespace stalloc::torch {
namespace {

constexpr std::size_t kWaitBlockBytes = 512;

CUresult wait_beside_captures(serve::Driver& driver) noexcept {
  const auto relaxed = Session::cuda().relax_captures();
  CUdeviceptr block = 0;
  const CUresult result = driver.allocate_plain(&block, kWaitBlockBytes);
  return result == CUDA_SUCCESS ? driver.free_plain(block) : result;
}

}  // namespace

bool may_wait_for_context() noexcept {
  const Captures& captures = Session::captures();
  return !captures.may_be_active() || captures.may_be_only_unseen();
}

CUresult wait_for_context(serve::Driver& driver) noexcept {
  const Captures& captures = Session::captures();
  if (!captures.may_be_active()) return driver.synchronize_context();
  return captures.may_be_only_unseen() ? wait_beside_captures(driver) : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

}  // namespace stalloc::torch
