// SPDX-License-Identifier: Apache-2.0
// Modules. Any image will do, and a function is found by any name. A module takes kModuleBytes of device memory.
// Three functions do something when they are launched, in one piece whatever the grid; the others do nothing:
//
//   simcuda_fault()                                                    touches what is not mapped
//   simcuda_fill(CUdeviceptr to, unsigned value, unsigned long long words)
//   simcuda_copy(CUdeviceptr to, CUdeviceptr from, unsigned long long bytes)
//
// A fault makes the context's error sticky. A program that also runs on a GPU brings functions of these names in PTX.
#pragma once

#include <cstdint>

#include "tests/simcuda/driver/config.h"

namespace simcuda {

inline constexpr std::uint64_t kModuleBytes = kPageBytes;

// Ends the modules that a reset or destroyed context leaves behind.
void drop_modules(std::uint64_t context_id);

}  // namespace simcuda
