// SPDX-License-Identifier: Apache-2.0
// dlsym: programs that look CUDA's functions up get ours, everybody else gets exactly what they would have got.
//
// The exported dlsym (dlsym_stub.S) asks `stalloc_answer_dlsym` first and, unless it answers, jumps to glibc's own with
// the caller's frame untouched: RTLD_NEXT and RTLD_DEFAULT mean something only relative to the caller.
#include <dlfcn.h>

#include <cstdint>

#include "interpose/base/loader.h"
#include "interpose/hooks/actions.h"
#include "interpose/hooks/hook_table.h"

namespace stalloc::hooks {
namespace {

// Returned in two registers.
struct Answer {
  void* address;
  std::uintptr_t answered;
};

// Whether the function that this library calls on is the caller's own: a library that was preloaded behind this one, or
// one that stands in for the driver. What it looks up is the true function, lest both call each other forever.
bool is_of_original(Hook hook, const void* caller) noexcept {
  loader::Module module;
  return loader::find_module(caller, &module) && module.holds(original_of(hook).find(caller));
}

Answer answer(void* handle, const char* symbol, const void* caller) noexcept {
  if (symbol == nullptr || symbol[0] != 'c' || symbol[1] != 'u') return {nullptr, 0};
  const Hook hook = find_hook(symbol);
  if (hook == Hook::kCount) {
    Session::captures().looked_up(symbol);
    events::looked_up(symbol);
  }
  if (hook == Hook::kCount || !Session::get().active() || is_of_original(hook, caller)) return {nullptr, 0};
  if (handle == RTLD_NEXT) {
    // Next behind the program itself is our own export: without CUDA the answer is "no", with dlerror set.
    if (original_of(hook).find(reinterpret_cast<const void*>(&answer)) != nullptr) return {nullptr, 0};
    return {loader::real_dlsym(RTLD_NEXT, symbol), 1};
  }
  void* real = handle == RTLD_DEFAULT ? replacement_of(hook) : loader::real_dlsym(handle, symbol);
  if (real == replacement_of(hook)) {
    // The global scope: our own export stands there even in a program without CUDA, whose answer is still "no".
    real = original_of(hook).find(reinterpret_cast<const void*>(&answer));
  } else if (real != nullptr) {
    original_of(hook).offer(real);
  }
  return {real == nullptr ? nullptr : replacement_of(hook), 1};
}

}  // namespace
}  // namespace stalloc::hooks

extern "C" {

// glibc's dlsym, for the stub to jump to.
__attribute__((visibility("hidden"))) void* (*stalloc_real_dlsym)(void*, const char*) = nullptr;

__attribute__((visibility("hidden"))) stalloc::hooks::Answer stalloc_answer_dlsym(void* handle, const char* symbol,
                                                                                  const void* caller) {
  if (stalloc_real_dlsym == nullptr) stalloc_real_dlsym = stalloc::loader::find_real_dlsym();
  return stalloc::hooks::answer(handle, symbol, caller);
}
}
