// SPDX-License-Identifier: Apache-2.0
// Streams of our own that wait for other streams. A block that several streams use is freed on one of them, so that the
// program's streams do not wait for each other.
#pragma once

#include <cuda.h>

#include <array>
#include <compare>
#include <cstddef>
#include <mutex>
#include <span>
#include <vector>

#include "interpose/serve/driver/driver.h"

namespace stalloc::torch {

// A stream and the context that it is of.
struct User {
  CUstream stream = nullptr;  // the legacy stream as CU_STREAM_LEGACY
  CUcontext context = nullptr;
  friend auto operator<=>(const User&, const User&) = default;
};

// Of one device. Thread-safe; never destroyed while the device's context may live.
class WaitingStreams {
 public:
  // A stream of the current context behind all work so far of `users`. Frees with the same users share one, in order;
  // those with others do not wait for them, as long as there are few kinds. CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED when
  // one of the users is being captured, another error as the driver says; a stream then waits for more than it had to,
  // which is right but later.
  CUresult behind(serve::Driver& driver, std::span<const User> users, CUstream* waiting) noexcept;

 private:
  struct Kind {
    std::vector<User> users;  // sorted
    CUstream stream = nullptr;
    std::size_t used_at = 0;
  };
  static constexpr std::size_t kMostStreams = 8;

  Kind& kind_of(std::vector<User> users);

  std::mutex mutex_;
  std::array<Kind, kMostStreams> kinds_;
  std::size_t clock_ = 0;
};

}  // namespace stalloc::torch
