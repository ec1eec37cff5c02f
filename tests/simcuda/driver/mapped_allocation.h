// SPDX-License-Identifier: Apache-2.0
// Allocations that have a mapping of their own and are not part of a heap: managed memory, and what was imported from a
// pool. Pre of every function: memory_mutex() is held.
#pragma once

#include "tests/simcuda/driver/address_space.h"
#include "tests/simcuda/driver/timeline.h"

namespace simcuda {

// Takes addresses for a whole extent and maps it there. Returns 0, with the extent unchanged, when there are no
// addresses.
CUdeviceptr map_alone(Extent* extent, unsigned access);

// Gives back the mapping that holds `address`, and its addresses, once `after` has passed. Pre: the allocation has
// ended.
void end_mapped(CUdeviceptr address, Point after);

// Gives back the mappings whose moment has come since.
void finish_mapped();

}  // namespace simcuda
