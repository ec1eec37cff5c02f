// Flags of contexts that we set on the program's behalf.
#pragma once

#include <cuda.h>

namespace stalloc::context_flags {

// From now on memory operations that the program asks for synchronously, in that context, are over when their function
// returns (CU_CTX_SYNC_MEMOPS). False: the driver cannot, as before CUDA 12.1, or refused. Thread-safe.
bool synchronize_memory_operations(CUcontext context) noexcept;

}  // namespace stalloc::context_flags
