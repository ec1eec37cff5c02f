// SPDX-License-Identifier: Apache-2.0
// One intercepted call: its caller and the original function.
#pragma once

#include "interpose/hooks/hook_table.h"

namespace stalloc::hooks {

enum class DefaultStream : bool { Legacy, PerThread };  // what stream 0 means at this entry point

// Keeps the return address of the outermost hook on this thread while it lives. A hook of the runtime and the driver's
// hook that it calls are one call of the program, whose caller is the caller of the outer hook. Scopes are nested; each
// thread has its own.
class CallerScope {
 public:
  explicit CallerScope(const void* caller) noexcept {
    if (depth_++ == 0) outermost_ = caller;
  }
  ~CallerScope() { --depth_; }
  CallerScope(const CallerScope&) = delete;
  CallerScope& operator=(const CallerScope&) = delete;
  // Pre: the thread is inside a hook.
  static const void* outermost() noexcept { return outermost_; }

 private:
  static inline thread_local unsigned depth_ = 0;
  static inline thread_local const void* outermost_ = nullptr;
};

// The result of a call whose original function does not exist because the library is not loaded.
template <class Result>
constexpr Result kNoLibrary{};
template <>
inline constexpr CUresult kNoLibrary<CUresult> = CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;
template <>
inline constexpr RuntimeResult kNoLibrary<RuntimeResult> = 35;  // cudaErrorInsufficientDriver

template <class Function>
class Call;

// Made by the exported function for each call, on its thread's stack. It owns nothing, and `original` must live longer.
template <class Result, class... Parameters>
class Call<Result(Parameters...)> {
 public:
  // `caller`: the return address of the exported function.
  Call(Original& original, const void* caller) noexcept : scope_(caller), original_(original), caller_(caller) {}

  // Calls the original function and returns its result; kNoLibrary if there is none. The function is looked up only
  // here, since most requests are served without it. May be called more than once.
  Result original(Parameters... arguments) const noexcept {
    const auto function = reinterpret_cast<Result (*)(Parameters...)>(original_.find(caller_));
    return function == nullptr ? kNoLibrary<Result> : function(arguments...);
  }
  [[nodiscard]] const void* caller() const noexcept { return caller_; }

 private:
  CallerScope scope_;
  Original& original_;
  const void* caller_;
};

}  // namespace stalloc::hooks
