// SPDX-License-Identifier: Apache-2.0
// The CUDA driver's functions, found by name: the library links no CUDA.
#pragma once

namespace stalloc::cuda_driver {

// Any function of the driver library, hooked or not, under its exported name; null when the library is not loaded or
// has none of that name. The library, once found, is never unloaded. Thread-safe.
void* symbol(const char* name) noexcept;

}  // namespace stalloc::cuda_driver
