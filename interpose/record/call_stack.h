// SPDX-License-Identifier: Apache-2.0
// Call stacks by libunwind, which is loaded when first needed and not linked: libunwind.so.8 exports _Unwind_*, and as
// a dependency of a preloaded library it would replace the functions that the program's C++ exceptions use.
#pragma once

#include <span>

namespace stalloc::record {

// False if libunwind.so.8 is not installed; stacks are then empty. The first call of either function loads the library,
// and so takes the dynamic loader's lock. Thread-safe.
bool call_stacks_available() noexcept;

// Fills `frames` with return addresses, innermost first, and returns their number. Thread-safe; this library allocates
// nothing for it.
std::size_t capture_call_stack(std::span<void*> frames) noexcept;

}  // namespace stalloc::record
