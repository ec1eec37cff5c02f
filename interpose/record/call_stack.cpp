// SPDX-License-Identifier: Apache-2.0
#include "interpose/record/call_stack.h"

#include <dlfcn.h>

#include "interpose/base/loader.h"

namespace stalloc::record {
namespace {

using Backtrace = int (*)(void** frames, int capacity);

Backtrace find_backtrace() noexcept {
  void* library = dlopen("libunwind.so.8", RTLD_LAZY | RTLD_LOCAL);
  return library == nullptr ? nullptr : reinterpret_cast<Backtrace>(loader::real_dlsym(library, "unw_backtrace"));
}

Backtrace backtrace_function() noexcept {
  static const Backtrace function = find_backtrace();
  return function;
}

}  // namespace

bool call_stacks_available() noexcept { return backtrace_function() != nullptr; }

std::size_t capture_call_stack(std::span<void*> frames) noexcept {
  const Backtrace backtrace = backtrace_function();
  if (backtrace == nullptr) return 0;
  const int count = backtrace(frames.data(), static_cast<int>(frames.size()));
  return count < 0 ? 0 : static_cast<std::size_t>(count);
}

}  // namespace stalloc::record
