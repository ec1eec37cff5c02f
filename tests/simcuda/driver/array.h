// SPDX-License-Identifier: Apache-2.0
// CUDA arrays, as plain rows: an array takes the device memory that its elements need.
#pragma once

#include <cstdint>

#include "tests/simcuda/driver/device.h"

namespace simcuda {

class ChunkHeap;

struct Array {
  CUdeviceptr at = 0;
  std::uint64_t row_bytes = 0;
  std::uint64_t rows = 0;  // in all layers
  ChunkHeap* heap = nullptr;
  std::uint64_t context_id = 0;
  CUDA_ARRAY3D_DESCRIPTOR descriptor{};
};

// Null when there is no such array. Pre: memory_mutex() is held.
const Array* find_array(CUarray handle);

// Ends the arrays that a reset or destroyed context leaves behind.
void drop_arrays(std::uint64_t context_id);

}  // namespace simcuda
