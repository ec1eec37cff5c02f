// SPDX-License-Identifier: Apache-2.0
#include "interpose/hooks/hook_table.h"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <new>

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

// For each hook, how many hooks of the runtime come before it; at the end, how many there are.
constexpr auto kRuntimeIndex = [] {
  constexpr Library kLibraries[] = {
#define STALLOC_HOOK(library, symbol, result, parameters, action) Library::library,
#include "interpose/hooks/hooks.def"
#undef STALLOC_HOOK
  };
  std::array<std::size_t, kHooks + 1> before{};
  for (std::size_t i = 0; i < kHooks; ++i) before[i + 1] = before[i] + (kLibraries[i] == Library::Runtime ? 1 : 0);
  return before;
}();
constexpr std::size_t kRuntimeHooks = kRuntimeIndex[kHooks];
std::size_t runtime_index(Hook hook) noexcept { return kRuntimeIndex[static_cast<std::size_t>(hook)]; }

// A process can contain two CUDA runtimes, each used by other libraries, so originals of runtime functions are kept
// for each calling module. The runtimes are kept loaded, but not the calling modules, since a program may unload its
// plugins. A module that is later loaded at the same addresses is assumed to use the same runtime.
struct CallingModule {
  explicit CallingModule(const loader::Module& range) noexcept : module(range) {}

  // What a search of the list reads lies together.
  const loader::Module module;
  std::atomic<CallingModule*> next{nullptr};
  std::array<std::atomic<void*>, kRuntimeHooks> functions{};  // null: not found, and searched for at each call
};
// The list of them, which only grows.
constinit std::atomic<CallingModule*> calling_modules{nullptr};

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

// Null: there is none.
CallingModule* find_calling_module(const void* caller) noexcept {
  CallingModule* at = calling_modules.load(std::memory_order_acquire);
  while (at != nullptr && !at->module.holds(caller)) at = at->next.load(std::memory_order_acquire);
  return at;
}

// Takes it over. Two threads may add the same module, of which the first one is found from then on.
void add_calling_module(CallingModule* added) noexcept {
  std::atomic<CallingModule*>* end = &calling_modules;
  CallingModule* there = nullptr;
  while (!end->compare_exchange_strong(there, added)) {
    end = &there->next;
    there = nullptr;
  }
}

// A search for a symbol takes the loader's lock. Another thread may hold that lock while it waits for this one: in
// dlclose, a destructor may join the threads of its library; in dlopen, a constructor may wait for a thread. So the
// functions of all hooks of the driver are found at the first call of any, and those of the runtime at a module's first
// call of any. If the process has a single runtime that is in use, its functions are known without that lock.
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
void* only_runtime_original(const loader::Definitions& found, std::size_t index) noexcept {
  if (found.count != 1) return nullptr;
  const CallingModule* at = calling_modules.load(std::memory_order_acquire);
  while (at != nullptr && at->functions[index].load() != found.first) at = at->next.load(std::memory_order_acquire);
  return at == nullptr ? nullptr : found.first;
}

// Finds the functions of the runtime that the module uses and that are not known yet. One that no module defines, since
// the runtime is older or newer than its hook, is searched for by the loader only if it is `wanted`.
void find_runtime_originals(CallingModule& calling, Hook wanted, const void* caller) noexcept {
  std::array<loader::Definitions, kRuntimeHooks> definitions;
  std::array<Hook, kRuntimeHooks> hooks;
  for (std::size_t i = 0; i < kHooks; ++i) {
    const auto hook = static_cast<Hook>(i);
    const Row& row = row_of(hook);
    if (row.library != Library::Runtime) continue;
    definitions[runtime_index(hook)] = {row.symbol, row.replacement};
    hooks[runtime_index(hook)] = hook;
  }
  loader::find_definitions(definitions);
  for (std::size_t i = 0; i < kRuntimeHooks; ++i) {
    if (calling.functions[i].load() != nullptr || (hooks[i] != wanted && definitions[i].count == 0)) continue;
    void* function = only_runtime_original(definitions[i], i);
    if (function == nullptr) {
      function = find_runtime_original(row_of(hooks[i]), caller);
      if (function == nullptr) continue;
      loader::pin(function);
    }
    calling.functions[i].store(function, std::memory_order_release);
  }
}

// The function for a module that has not called this hook before. Null: there is none, or the caller is in no module.
void* new_runtime_original(Hook hook, const void* caller, CallingModule* calling) noexcept {
  const KeptErrno kept;
  const std::size_t index = runtime_index(hook);
  if (calling != nullptr) {
    find_runtime_originals(*calling, hook, caller);
    return calling->functions[index].load();
  }
  loader::Module module;
  if (!loader::find_module(caller, &module)) return nullptr;
  CallingModule once(module);  // where host memory is exhausted
  auto* const made = new (std::nothrow) CallingModule(module);
  CallingModule& filled = made == nullptr ? once : *made;
  find_runtime_originals(filled, hook, caller);
  if (made != nullptr) add_calling_module(made);
  return filled.functions[index].load();
}

}  // namespace

Hook find_hook(std::string_view symbol) noexcept {
  for (std::size_t i = 0; i < kHooks; ++i) {
    if (symbol == row_of(static_cast<Hook>(i)).symbol) return static_cast<Hook>(i);
  }
  return Hook::kCount;
}

bool belongs_to(const void* original, const void* caller) noexcept {
  loader::Module module;
  return loader::find_module(caller, &module) && module.holds(original);
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
    CallingModule* const calling = find_calling_module(caller);
    const std::size_t index = runtime_index(hook_);
    void* bound = calling == nullptr ? nullptr : calling->functions[index].load(std::memory_order_acquire);
    if (bound == nullptr) bound = new_runtime_original(hook_, caller, calling);
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
