// SPDX-License-Identifier: Apache-2.0
#include "interpose/hooks/hook_table.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "interpose/base/kept_errno.h"
#include "interpose/base/loader.h"
#include "interpose/session/session.h"

using stalloc::hooks::RuntimeResult;
extern "C" {
#define STALLOC_HOOK(library, symbol, result, parameters, action) result symbol parameters;
#include "interpose/hooks/hooks.def"
#undef STALLOC_HOOK
}

namespace stalloc::hooks {
namespace {

struct Row {
  const char* symbol;
  Library library;
  void* replacement;
};

const Row& row_of(Hook hook) noexcept {
  static const Row rows[] = {
#define STALLOC_HOOK(library, symbol, result, parameters, action) \
  {#symbol, Library::library, reinterpret_cast<void*>(&::symbol)},
#include "interpose/hooks/hooks.def"
#undef STALLOC_HOOK
  };
  return rows[static_cast<std::size_t>(hook)];
}

constexpr std::size_t kHooks = static_cast<std::size_t>(Hook::kCount);

// A process can contain two CUDA runtimes, each used by other libraries, so originals of runtime functions are cached
// per calling module. Slots are filled in order and never change once `function` is set. The runtimes are kept loaded,
// but not the calling modules, since a program may unload its plugins. A module that is later loaded at the same
// addresses is assumed to use the same runtime.
struct CallerOriginal {
  std::atomic<void*> function{nullptr};
  loader::Module module;
};
constexpr std::size_t kCallers = 32;

struct CallerOriginals {
  std::array<CallerOriginal, kCallers> known;
  std::atomic<std::size_t> claimed{0};
};
CallerOriginals callers[kHooks];

std::atomic<void*> driver_functions[kHooks];
std::atomic<bool> driver_functions_known{false};

void look_up_driver_functions() noexcept {
  if (driver_functions_known.load(std::memory_order_acquire)) return;
  const KeptErrno kept;
  for (std::size_t i = 0; i < kHooks; ++i) {
    const Row& row = row_of(static_cast<Hook>(i));
    if (row.library == Library::Driver) driver_functions[i].store(Session::cuda().symbol(row.symbol));
  }
  const bool is_loaded = driver_functions[static_cast<std::size_t>(Hook::cuInit)].load() != nullptr;
  driver_functions_known.store(is_loaded, std::memory_order_release);
}

// The next definition after this library in the global scope, else the driver library's own.
void* find_driver_original(const Row& row) noexcept {
  const KeptErrno kept;
  if (void* next = loader::real_dlsym(RTLD_NEXT, row.symbol)) return next;
  return Session::cuda().symbol(row.symbol);
}

// The function to which the caller is linked. The caller's dependencies are searched before the global scope, since
// libraries that Python loads are not in the global scope.
void* find_runtime_original(const Row& row, const void* caller) noexcept {
  void* const found = loader::find_by_module(caller, row.symbol);
  if (found != nullptr && found != row.replacement) return found;
  if (void* next = loader::real_dlsym(RTLD_NEXT, row.symbol)) return next;
  return loader::find_in_loaded("libcudart", row.symbol);
}

void* known_runtime_original(const CallerOriginals& originals, const void* caller) noexcept {
  for (const CallerOriginal& known : originals.known) {
    void* function = known.function.load(std::memory_order_acquire);
    if (function == nullptr) break;
    if (known.module.holds(caller)) return function;
  }
  return nullptr;
}

void remember_runtime_original(CallerOriginals& originals, const loader::Module& module, void* function) noexcept {
  const std::size_t index = originals.claimed.fetch_add(1, std::memory_order_relaxed);
  if (index >= kCallers) return;  // further callers are looked up each time
  originals.known[index].module = module;
  originals.known[index].function.store(function, std::memory_order_release);
}

// A search for a symbol takes the loader's lock. Another thread may hold that lock while it waits for this one: in
// dlclose, a destructor may join the threads of its library; in dlopen, a constructor may wait for a thread. So the
// functions of all hooks of the driver are found at the first call of any, and those of the runtime at a module's first
// call of any, as long as there are slots. If the process has a single runtime that is in use, its functions are known
// without a search.
void find_driver_originals() noexcept {
  look_up_driver_functions();
  for (std::size_t i = 0; i < kHooks; ++i) {
    const Row& row = row_of(static_cast<Hook>(i));
    if (row.library != Library::Driver || originals[i].is_known()) continue;
    if (void* function = find_driver_original(row)) originals[i].remember(function);
  }
}

// The only function of that name in the process, if another module uses it already, so that it stays loaded: a search
// by the loader would find no other one. Null: there are others, or no module uses it.
void* only_runtime_original(const loader::Definitions& found, const CallerOriginals& originals) noexcept {
  if (found.count != 1) return nullptr;
  const auto is_used = [&](const CallerOriginal& known) { return known.function.load() == found.first; };
  return std::any_of(originals.known.begin(), originals.known.end(), is_used) ? found.first : nullptr;
}

// The function for a module that has not called this hook before.
void* new_runtime_original(Hook hook, const void* caller) noexcept {
  const KeptErrno kept;
  loader::Module module;
  if (!loader::find_module(caller, &module)) return nullptr;
  const bool is_full = callers[static_cast<std::size_t>(hook)].claimed.load(std::memory_order_relaxed) >= kCallers;
  void* wanted = nullptr;
  for (std::size_t i = 0; i < kHooks; ++i) {
    const Row& row = row_of(static_cast<Hook>(i));
    const bool is_wanted = i == static_cast<std::size_t>(hook);
    if (row.library != Library::Runtime) continue;
    if (!is_wanted && (is_full || known_runtime_original(callers[i], caller) != nullptr)) continue;
    const loader::Definitions found = loader::find_definitions(row.symbol, row.replacement);
    if (!is_wanted && found.count == 0) continue;  // the runtime is older or newer than this hook
    void* function = only_runtime_original(found, callers[i]);
    if (function == nullptr) {
      function = find_runtime_original(row, caller);
      if (function == nullptr) continue;
      loader::pin(function);
    }
    remember_runtime_original(callers[i], module, function);
    if (is_wanted) wanted = function;
  }
  return wanted;
}

}  // namespace

Hook find_hook(std::string_view symbol) noexcept {
  for (std::size_t i = 0; i < kHooks; ++i) {
    if (symbol == row_of(static_cast<Hook>(i)).symbol) return static_cast<Hook>(i);
  }
  return Hook::kCount;
}

Library library_of(Hook hook) noexcept { return row_of(hook).library; }
const char* symbol_of(Hook hook) noexcept { return row_of(hook).symbol; }
void* replacement_of(Hook hook) noexcept { return row_of(hook).replacement; }
void* driver_function(Hook hook) noexcept {
  look_up_driver_functions();
  return driver_functions[static_cast<std::size_t>(hook)].load(std::memory_order_relaxed);
}

void* Original::find(const void* caller) noexcept {
  const Row& row = row_of(hook_);
  if (row.library == Library::Runtime) {
    void* bound = known_runtime_original(callers[static_cast<std::size_t>(hook_)], caller);
    if (bound == nullptr) bound = new_runtime_original(hook_, caller);
    return bound != nullptr ? bound : find_for_generated_code(caller);
  }
  if (!is_known()) find_driver_originals();
  return known_.load(std::memory_order_acquire);
}

// Code that a program generates while it runs is in no module. It has the function's address from a look-up or from a
// module that is linked with it.
void* Original::find_for_generated_code(const void* caller) noexcept {
  if (!is_known()) {
    const KeptErrno kept;
    if (void* found = find_runtime_original(row_of(hook_), caller)) remember(found);
  }
  return known_.load(std::memory_order_acquire);
}

void Original::remember(void* real) noexcept {
  if (real == replacement_of(hook_)) return;
  void* expected = nullptr;
  if (known_.compare_exchange_strong(expected, real)) loader::pin(real);
}

}  // namespace stalloc::hooks
