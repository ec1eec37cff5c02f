// SPDX-License-Identifier: Apache-2.0
// One intercepted call: who called, and the original function.
#pragma once

#include "interpose/hooks/hook_table.h"

namespace stalloc::hooks {

enum class Default : bool { Legacy, PerThread };  // what stream 0 means at this entry point

// The return address of the outermost hook on this thread: the runtime's hook and the driver's hook beneath it are one
// call of the program's, and its caller is the one above both.
class CallerScope {
 public:
  explicit CallerScope(const void* caller) noexcept {
    if (depth_++ == 0) outermost_ = caller;
  }
  ~CallerScope() { --depth_; }
  CallerScope(const CallerScope&) = delete;
  CallerScope& operator=(const CallerScope&) = delete;
  static const void* outermost() noexcept { return outermost_; }

 private:
  static inline thread_local unsigned depth_ = 0;
  static inline thread_local const void* outermost_ = nullptr;
};

// What each library returns when there is no original function because it is not loaded.
template <class Result>
constexpr Result kNoLibrary{};
template <>
inline constexpr CUresult kNoLibrary<CUresult> = CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;
template <>
inline constexpr RuntimeResult kNoLibrary<RuntimeResult> = 35;  // cudaErrorInsufficientDriver

template <class Function>
class Call;

template <class Result, class... Parameters>
class Call<Result(Parameters...)> {
 public:
  Call(Original& original, const void* caller) noexcept : scope_(caller), original_(original), caller_(caller) {}

  // Calls the original function, which is looked up only now: most requests are served without it.
  Result original(Parameters... arguments) const noexcept {
    const auto function = reinterpret_cast<Result (*)(Parameters...)>(original_.find(caller_));
    return function == nullptr ? kNoLibrary<Result> : function(arguments...);
  }

 private:
  CallerScope scope_;
  Original& original_;
  const void* caller_;
};

}  // namespace stalloc::hooks
