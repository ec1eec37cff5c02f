// SPDX-License-Identifier: Apache-2.0
// Access to the dynamic loader without this library's own dlsym. All functions are thread-safe and throw nothing.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "interpose/base/dynamic_symbols.h"

namespace stalloc::loader {

// Returns glibc's dlsym, which is found by its version, so that this library's own dlsym is not found instead.
using DlsymFunction = void* (*)(void* handle, const char* symbol);
DlsymFunction find_real_dlsym() noexcept;

// Calls glibc's dlsym. RTLD_NEXT means after this library.
void* real_dlsym(void* handle, const char* symbol) noexcept;

// Looks up what `find_module` needs, so that later calls take no lock.
void prepare() noexcept;

// Returns a handle of the loaded library with this file name or path; null if it is not loaded. The caller must call
// dlclose; until then the library stays loaded.
void* open_loaded(const char* name) noexcept;

// Keeps the library that contains `address` loaded until the process ends.
void pin(const void* address) noexcept;

// The address range of a loaded module.
struct Module {
  const char* low = nullptr;
  const char* high = nullptr;  // half-open
  const char* path = nullptr;  // as the loader has it; "" for the program itself; valid while the module is loaded
  [[nodiscard]] bool holds(const void* address) const noexcept {
    return static_cast<const char*>(address) >= low && static_cast<const char*>(address) < high;
  }
};
// Finds the module that contains `address`. False: there is none. Before glibc 2.35 it takes the loader's lock.
bool find_module(const void* address, Module* module) noexcept;

// The symbol as the module that holds `address` and the libraries that it needs define it; null when they do not, and
// for the program itself, which searches the global scope. Pre: the module stays loaded meanwhile.
void* find_by_module(const void* address, const char* symbol) noexcept;

// Whether the module that holds `first` comes before the one that holds `second` in the order in which the loader
// searches the global scope. Pre: `second` is in a library that was loaded with the program.
bool precedes(const void* first, const void* second) noexcept;

// True if a library is loaded whose file name begins with one of `prefixes`.
bool any_loaded(std::span<const std::string_view> prefixes) noexcept;

// The definitions of a symbol in all loaded modules.
struct Definitions {
  SymbolName symbol;
  const void* except = nullptr;  // a definition that does not count
  void* first = nullptr;         // in the order in which the modules were loaded; null: there is none
  std::size_t count = 0;
};
// Finds the definitions of all these symbols, at once: it visits every module. Waits for no constructor and no
// destructor of a library, as dlsym does.
void find_definitions(std::span<Definitions> sought) noexcept;

// Returns `symbol` of the first loaded library whose file name begins with `prefix` and that defines it, without its
// dependencies; null: there is none.
void* find_in_loaded(const char* prefix, const char* symbol) noexcept;

}  // namespace stalloc::loader
