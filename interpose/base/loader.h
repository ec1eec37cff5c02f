// SPDX-License-Identifier: Apache-2.0
// The dynamic loader, without our own dlsym.
#pragma once

#include <span>
#include <string_view>

namespace stalloc::loader {

// glibc's dlsym, found by version so that our own export is not.
using DlsymFunction = void* (*)(void* handle, const char* symbol);
DlsymFunction find_real_dlsym() noexcept;

// Calls it. RTLD_NEXT means after this library.
void* real_dlsym(void* handle, const char* symbol) noexcept;

// A handle of the loaded library with this file name or path; null when it is not loaded. It keeps the library loaded
// until dlclose.
void* loaded(const char* name) noexcept;

// Keeps the library that holds `address` from being unloaded, for good.
void pin(const void* address) noexcept;

// Address range of the module that holds `address`.
struct Module {
  const char* low = nullptr;
  const char* high = nullptr;  // half-open
  const char* path = nullptr;  // as the loader knows it; "" for the program itself; valid while the module is loaded
  [[nodiscard]] bool holds(const void* address) const noexcept {
    return static_cast<const char*>(address) >= low && static_cast<const char*>(address) < high;
  }
};
// False when no module holds it. Takes a lock of the loader's before glibc 2.35.
bool find_module(const void* address, Module* module) noexcept;

// The symbol as the module that holds `address` and the libraries that it needs define it; null when they do not, and
// for the program itself, which searches the global scope. Pre: the module stays loaded meanwhile.
void* find_by_module(const void* address, const char* symbol) noexcept;

// Whether the module that holds `first` comes before the one that holds `second` in the order in which the loader
// searches the global scope. Pre: `second` is in a library that was loaded with the program.
bool is_before(const void* first, const void* second) noexcept;

// True when a library is loaded whose file name begins with one of `prefixes`.
bool any_loaded(std::span<const std::string_view> prefixes) noexcept;

// The first loaded library whose file name begins with `prefix` and that defines `symbol`, searched by itself; null.
void* find_in_loaded(const char* prefix, const char* symbol) noexcept;

}  // namespace stalloc::loader
