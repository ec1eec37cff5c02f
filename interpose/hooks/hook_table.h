// The hooks by number and by name, and the original function behind each.
#pragma once

#include <cuda.h>
// Several versions of these are hooked, each under its exported name.
#undef cuCtxDestroy
#undef cuDevicePrimaryCtxRelease
#undef cuDevicePrimaryCtxReset
#undef cuEventDestroy
#undef cuGetProcAddress
#undef cuGraphAddNode
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

// The hook of that exported name, kCount if none.
Hook find_hook(std::string_view symbol) noexcept;
Library library_of(Hook hook) noexcept;
const char* symbol_of(Hook hook) noexcept;
void* replacement_of(Hook hook) noexcept;  // our exported function

// The original function behind a hook. Thread-safe; lock-free once found.
class Original {
 public:
  constexpr explicit Original(Hook hook) noexcept : hook_(hook) {}
  Original(const Original&) = delete;
  Original& operator=(const Original&) = delete;

  // For a call that came from `caller` (a return address): what the caller would have been bound to without us. Null
  // when no CUDA library that has it is loaded. Found once, then cached; the library is pinned, so that a dlclose of
  // the program's cannot leave a dangling pointer.
  void* find(const void* caller) noexcept;

  // A lookup of the program's found `real`: remembers it for callers that name no library themselves.
  void offer(void* real) noexcept;

 private:
  Hook hook_;
  std::atomic<void*> known_{nullptr};  // the driver's only one; for the runtime, what was offered
};

// Those of the process, by hook.
inline constinit Original originals[] = {
#define STALLOC_HOOK(library, symbol, result, parameters, action) Original(Hook::symbol),
#include "interpose/hooks/hooks.def"
#undef STALLOC_HOOK
};
inline Original& original_of(Hook hook) noexcept { return originals[static_cast<std::size_t>(hook)]; }

}  // namespace stalloc::hooks
