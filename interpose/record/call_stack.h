// SPDX-License-Identifier: Apache-2.0
// Call stacks by libunwind, which is loaded when first needed and never linked: libunwind.so.8 exports _Unwind_*, and
// as a dependency of a preloaded library it would take over the program's C++ exceptions.
#pragma once

#include <span>

namespace stalloc::record {

// False when libunwind.so.8 is not installed; stacks are then empty.
bool call_stacks_available() noexcept;

// Fills `frames` with return addresses, innermost first, and returns how many. Thread-safe; no allocation of ours.
std::size_t capture_call_stack(std::span<void*> frames) noexcept;

}  // namespace stalloc::record
