// Allocations that are a mapping of their own and no part of a heap: managed memory, and what was imported from a pool.
// pre of every function: memory_mutex() held.
#pragma once

#include "tests/simcuda/driver/address_space.h"
#include "tests/simcuda/driver/timeline.h"

namespace simcuda {

// Takes the addresses of a whole extent and maps it there; 0 when there are none, and the extent is as it was.
CUdeviceptr map_alone(Extent* extent, unsigned access);

// Gives the mapping that holds `address` back with its addresses, once `after` has passed. pre: no allocation any more.
void end_mapped(CUdeviceptr address, Point after);

// Does so for what was freed before and is due now.
void finish_mapped();

}  // namespace simcuda
