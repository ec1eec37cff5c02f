// SPDX-License-Identifier: Apache-2.0
// dlsym: programs that look CUDA's functions up get ours, everybody else gets exactly what they would have got.
//
// The exported dlsym (dlsym_stub.S) asks `stalloc_intercept_dlsym` first and, unless it answers, jumps to glibc's own
// with the caller's frame untouched: RTLD_NEXT and RTLD_DEFAULT mean something only relative to the caller.
#include <dlfcn.h>

#include <cstdint>

#include "interpose/base/loader.h"
#include "interpose/hooks/actions.h"
#include "interpose/hooks/hook_table.h"

namespace stalloc::hooks {
namespace {

// Returned in two registers.
struct DlsymResult {
  void* address;
  std::uintptr_t answered;
};

// What the program would find if this library were not loaded. The last search is the one that decides, so dlerror
// tells of that one. Pre: if `handle` is RTLD_NEXT, the caller's module comes before this library in the order of the
// search.
void* find_without_library(void* handle, Hook hook, const void* caller) noexcept {
  const char* const symbol = symbol_of(hook);
  if (handle != RTLD_NEXT) {
    void* const found = loader::real_dlsym(handle, symbol);
    if (found != replacement_of(hook)) return found;
  }
  // Our own export is in the global scope even in a program without CUDA: what counts is what comes behind it.
  void* const next = loader::real_dlsym(RTLD_NEXT, symbol);
  return next != nullptr || handle != RTLD_DEFAULT ? next : loader::find_by_module(caller, symbol);
}

// Whether the function that this library calls on is the caller's own: a library that was preloaded behind this one, or
// one that stands in for the driver. What it looks up is the true function, lest both call each other forever.
bool is_of(const void* original, const void* caller) noexcept {
  loader::Module module;
  return loader::find_module(caller, &module) && module.holds(original);
}

DlsymResult intercept(void* handle, const char* symbol, const void* caller) noexcept {
  if (symbol == nullptr || symbol[0] != 'c' || symbol[1] != 'u') return {nullptr, 0};
  const Hook hook = find_hook(symbol);
  if (hook == Hook::kCount) {
    Session::captures().note_lookup(symbol);
    events::looked_up(symbol);
    return {nullptr, 0};
  }
  if (handle == RTLD_NEXT && !loader::precedes(caller, reinterpret_cast<const void*>(&intercept))) return {nullptr, 0};
  // The replacement is given only for the function that it calls for this caller, and for the driver's own, which
  // another preloaded library may hide from it. Everything else is given as it is: the function of a second runtime,
  // and one of CUDA's names in a library of the program's own.
  void* original = nullptr;
  void* drivers_own = nullptr;
  if (Session::get().active()) {
    original = original_of(hook).find(caller);
    if (library_of(hook) == Library::Driver) drivers_own = Session::cuda().symbol(symbol);
  }
  void* const real = find_without_library(handle, hook, caller);
  const bool is_replaced = real != nullptr && (real == original || real == drivers_own) && !is_of(original, caller);
  return {is_replaced ? replacement_of(hook) : real, 1};
}

}  // namespace
}  // namespace stalloc::hooks

extern "C" {

// glibc's dlsym, for the stub to jump to.
__attribute__((visibility("hidden"))) void* (*stalloc_real_dlsym)(void*, const char*) = nullptr;

__attribute__((visibility("hidden"))) stalloc::hooks::DlsymResult stalloc_intercept_dlsym(void* handle,
                                                                                          const char* symbol,
                                                                                          const void* caller) {
  if (stalloc_real_dlsym == nullptr) stalloc_real_dlsym = stalloc::loader::find_real_dlsym();
  return stalloc::hooks::intercept(handle, symbol, caller);
}
}
