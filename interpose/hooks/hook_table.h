// SPDX-License-Identifier: Apache-2.0
// The hooks by number and by name, and the original function of each. All functions are thread-safe and throw nothing.
#pragma once

#include <cuda.h>
// cuda.h defines these names as macros for their latest versions; each version is hooked under its exported name.
#undef cuCtxCreate
#undef cuCtxDestroy
#undef cuDevicePrimaryCtxRelease
#undef cuDevicePrimaryCtxReset
#undef cuEventDestroy
#undef cuGetProcAddress
#undef cuGraphAddKernelNode
#undef cuGraphAddNode
#undef cuGraphExecKernelNodeSetParams
#undef cuGraphExecUpdate
#undef cuGraphInstantiate
#undef cuGraphKernelNodeSetParams
#undef cuStreamBeginCapture
#undef cuStreamBeginCaptureToGraph
#undef cuStreamDestroy

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace stalloc::hooks {

using RuntimeResult = int;  // cudaError_t: an enumeration, so an int in the ABI; 0 is success

enum class Library : std::uint8_t { Driver, Runtime };

enum class Hook : std::uint16_t {
#define STALLOC_HOOK(library, symbol, result, parameters, action) symbol,
#include "interpose/hooks/hooks.def"
#undef STALLOC_HOOK
  kCount
};

// The hook with that exported name; kCount: there is none. Linear in the number of hooks.
Hook find_hook(std::string_view symbol) noexcept;
// Pre, for these three: `hook` is not kCount. The names are static strings.
Library library_of(Hook hook) noexcept;
const char* symbol_of(Hook hook) noexcept;
void* replacement_of(Hook hook) noexcept;  // the function that this library exports
// Whether the function, which the hook would call, belongs to the caller's own module: a library preloaded behind this
// one, or a substitute for the driver. Such a caller must find the driver's own function, or the two libraries would
// call each other forever. Null: there is no function.
bool belongs_to(const void* original, const void* caller) noexcept;
// The driver library's own function; null: it has none, or is not loaded. Searched together with the first original.
void* driver_function(Hook hook) noexcept;

// The original function of a hook. Thread-safe; lock-free once found.
class Original {
 public:
  constexpr explicit Original(Hook hook) noexcept : hook_(hook) {}
  Original(const Original&) = delete;
  Original& operator=(const Original&) = delete;

  // For a call from `caller` (a return address): the function to which the caller would be bound without this library.
  // Null if no loaded CUDA library has it. The result is cached, and its library is kept loaded, so that a dlclose by
  // the program cannot leave a dangling pointer. The first call may take the dynamic loader's lock.
  void* find(const void* caller) noexcept;

  [[nodiscard]] bool is_known() const noexcept { return known_.load(std::memory_order_acquire) != nullptr; }

  // `real` is CUDA's own function: it is kept for callers for which none is found otherwise.
  void remember(void* real) noexcept;

 private:
  void* find_for_generated_code(const void* caller) noexcept;

  Hook hook_;
  std::atomic<void*> known_{nullptr};  // the driver's only one; for the runtime, that of callers in no module
};

// The originals of the process, indexed by hook.
inline constinit Original originals[] = {
#define STALLOC_HOOK(library, symbol, result, parameters, action) Original(Hook::symbol),
#include "interpose/hooks/hooks.def"
#undef STALLOC_HOOK
};
inline Original& original_of(Hook hook) noexcept { return originals[static_cast<std::size_t>(hook)]; }

}  // namespace stalloc::hooks
