// SPDX-License-Identifier: Apache-2.0
// Declarations of every driver entry point. The functions live in namespace simcuda under names of their own; the
// assembler label gives each its CUDA symbol, so that no version of cuda.h (whose macros rename functions from one
// release to the next) can disagree with it.
#pragma once

#include <cuda.h>

#include <cstddef>

namespace simcuda {

// Stream 0 as a per-thread-default-stream (_ptsz) entry point means it.
inline CUstream per_thread(CUstream stream) { return stream == nullptr ? CU_STREAM_PER_THREAD : stream; }

#define SIMCUDA_EXPORT(symbol) __asm__(symbol) __attribute__((visibility("default")))
#define SIMCUDA_PLAIN(function, base, symbol, version, parameters) CUresult function parameters SIMCUDA_EXPORT(symbol);
#define SIMCUDA_PER_THREAD(function, base, symbol, version, parameters) \
  CUresult function parameters SIMCUDA_EXPORT(symbol);
#define SIMCUDA_STREAM(function, base, symbol, version, parameters, arguments) \
  CUresult function parameters SIMCUDA_EXPORT(symbol);                         \
  CUresult function##_ptsz parameters SIMCUDA_EXPORT(symbol "_ptsz");
#include "tests/simcuda/driver/functions.h"
#undef SIMCUDA_PLAIN
#undef SIMCUDA_PER_THREAD
#undef SIMCUDA_STREAM

}  // namespace simcuda
