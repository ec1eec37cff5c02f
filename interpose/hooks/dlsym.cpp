// SPDX-License-Identifier: Apache-2.0
// Replaces dlsym: a look-up of a hooked CUDA function returns the hook, and any other look-up returns what it would
// without this library.
//
// The exported dlsym (dlsym_stub.S) calls `stalloc_intercept_dlsym`. If that has no result, the stub jumps to glibc's
// dlsym with the caller's frame untouched, since RTLD_NEXT and RTLD_DEFAULT depend on the caller's address.
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

// What the program would find if this library were not loaded. dlerror then describes the last search made here. Pre:
// if `handle` is RTLD_NEXT, the caller's module precedes this library in the search order.
void* find_without_library(void* handle, Hook hook, const void* caller) noexcept {
  const char* const symbol = symbol_of(hook);
  if (handle != RTLD_NEXT) {
    void* const found = loader::real_dlsym(handle, symbol);
    if (found != replacement_of(hook)) return found;
  }
  // The search found our own export, which is in the global scope even without CUDA: search behind this library.
  void* const next = loader::real_dlsym(RTLD_NEXT, symbol);
  return next != nullptr || handle != RTLD_DEFAULT ? next : loader::find_by_module(caller, symbol);
}

// The stub makes the program's own search afterwards, and this function does not learn what it finds. So the driver is
// searched here, too: what it lacks, as an older driver lacks a newer function, the program cannot call. The names that
// matter are few, so this is rare.
void note_unhooked(const char* symbol) noexcept {
  if (!Captures::may_begin_by(symbol) && !events::may_record_by(symbol)) return;
  if (Session::cuda().symbol(symbol) == nullptr) return;
  Session::captures().note_lookup(symbol);
  events::looked_up(symbol);
}

DlsymResult intercept(void* handle, const char* symbol, const void* caller) noexcept {
  if (symbol == nullptr || symbol[0] != 'c' || symbol[1] != 'u') return {nullptr, 0};
  const Hook hook = find_hook(symbol);
  if (hook == Hook::kCount) {
    note_unhooked(symbol);
    return {nullptr, 0};
  }
  if (handle == RTLD_NEXT && !loader::precedes(caller, reinterpret_cast<const void*>(&intercept))) return {nullptr, 0};
  // The hook is returned instead of the original function that it would call for this caller, and instead of the
  // driver's function, which another preloaded library may hide. Any other function is returned unchanged: that of a
  // second runtime, or one of the program's own libraries that has the same name.
  void* original = nullptr;
  void* drivers_own = nullptr;
  if (Session::get().active()) {
    original = original_of(hook).find(caller);
    if (library_of(hook) == Library::Driver) drivers_own = Session::cuda().symbol(symbol);
  }
  void* const real = find_without_library(handle, hook, caller);
  const bool is_replaced =
      real != nullptr && (real == original || real == drivers_own) && !belongs_to(original, caller);
  if (is_replaced) original_of(hook).remember(real);  // the caller may pass the hook on to code that it generates
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
