// Pools that another process may import, and imported ones. Here both ends are one process: what is imported lies at an
// address of its own and shares its bytes with the original. pre of every function: memory_mutex() held.
#pragma once

#include "tests/simcuda/driver/allocation.h"
#include "tests/simcuda/driver/pool.h"

namespace simcuda {

// The pool's access has changed: its imported memory follows. pre: `pool` is an imported one.
void set_imported_access(const Pool& pool);

}  // namespace simcuda
