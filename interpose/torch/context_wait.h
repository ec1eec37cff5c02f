// SPDX-License-Identifier: Apache-2.0
// Waiting for all work of a context without breaking the program's captures.
#pragma once

#include <cuda.h>

#include "interpose/serve/driver/driver.h"

namespace stalloc::torch {

// False while a capture is known to be under way: a wait has to be put off until it is over. Lock-free.
bool may_wait_for_context() noexcept;

// Waits for all work that was given to the current context. CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED or
// CUDA_ERROR_OUT_OF_MEMORY: nothing was waited for, because of a capture or because the device is full. Any other error
// is one of the device or of the context. Breaks no capture: where one may have begun unseen, cuCtxSynchronize, which
// breaks those of its context, is not called. Instead a small block is freed by cuMemFree, which waits for the same
// work (serve/streams/free_fence.h), and which no capture forbids a thread whose mode is relaxed.
CUresult wait_for_context(serve::Driver& driver) noexcept;

}  // namespace stalloc::torch
