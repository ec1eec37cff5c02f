// SPDX-License-Identifier: Apache-2.0
#include "interpose/torch/waiting_streams.h"

#include <algorithm>
#include <new>
#include <utility>

#include "interpose/session/session.h"

namespace stalloc::torch {
namespace {

// `waiting`, of the current context, waits for the work of `user` so far.
CUresult wait_for(serve::Driver& driver, const User& user, CUstream waiting) noexcept {
  CUevent event = nullptr;
  CUresult result = CUDA_SUCCESS;
  {
    const serve::ContextScope scope(driver, user.context);  // an event is recorded on streams of its own context
    if (!scope.ok()) return CUDA_ERROR_INVALID_CONTEXT;
    result = driver.create_event(&event);
    if (result != CUDA_SUCCESS) return result;
    result = driver.record_event(event, user.stream);
  }
  if (result == CUDA_SUCCESS) result = driver.wait_event(waiting, event);
  driver.destroy_event(event);  // CUDA keeps it for those who wait
  return result;
}

}  // namespace

// The one for just these users, else one that nobody uses yet, else the one that was used longest ago.
WaitingStreams::Kind& WaitingStreams::kind_of(std::vector<User> users) {
  std::sort(users.begin(), users.end());
  Kind* oldest = &kinds_.front();
  for (Kind& kind : kinds_) {
    if (kind.users == users) return kind;
    if (kind.used_at < oldest->used_at) oldest = &kind;
  }
  oldest->users = std::move(users);
  return *oldest;
}

CUresult WaitingStreams::behind(serve::Driver& driver, std::span<const User> users, CUstream* waiting) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    Kind& kind = kind_of({users.begin(), users.end()});
    kind.used_at = ++clock_;
    if (kind.stream == nullptr) {
      if (const CUresult result = Session::cuda().create_stream(&kind.stream); result != CUDA_SUCCESS) return result;
    }
    for (const User& user : kind.users) {
      if (const CUresult result = wait_for(driver, user, kind.stream); result != CUDA_SUCCESS) return result;
    }
    *waiting = kind.stream;
    return CUDA_SUCCESS;
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

}  // namespace stalloc::torch
