// SPDX-License-Identifier: Apache-2.0
// Finds the CUDA driver's functions by name, since this library is not linked with CUDA.
#pragma once

namespace stalloc::cuda_driver {

// Returns the driver library's function of that exported name, hooked or not; null if the library is not loaded or has
// no such function. Once found, the driver library is never unloaded. Thread-safe.
void* symbol(const char* name) noexcept;

}  // namespace stalloc::cuda_driver
