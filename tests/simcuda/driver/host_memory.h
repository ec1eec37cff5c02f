// SPDX-License-Identifier: Apache-2.0
// Pinned host memory, which asynchronous copies use in place. Pre of every function: memory_mutex() is held.
#pragma once

#include <cstdint>

#include "tests/simcuda/driver/device.h"

namespace simcuda {

struct HostMemory {
  std::uintptr_t begin = 0;
  std::uint64_t bytes = 0;
  Context* context = nullptr;
  std::uint64_t buffer_id = 0;
};

// The pinned memory that holds the address, or null.
const HostMemory* find_host_memory(std::uintptr_t address);

bool is_pinned(const void* memory, std::uint64_t bytes);

}  // namespace simcuda
