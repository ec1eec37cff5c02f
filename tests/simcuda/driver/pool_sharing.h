// SPDX-License-Identifier: Apache-2.0
// Pools that another process may import, and imported pools. Here both ends are one process: what is imported lies at
// an address of its own and shares its bytes with the original. Pre of every function: memory_mutex() is held.
#pragma once

#include "tests/simcuda/driver/allocation.h"
#include "tests/simcuda/driver/pool.h"

namespace simcuda {

// Gives the pool's imported memory the pool's access, which has changed. Pre: `pool` is imported.
void set_imported_access(const Pool& pool);

}  // namespace simcuda
