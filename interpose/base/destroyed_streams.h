// SPDX-License-Identifier: Apache-2.0
// The streams that the program has destroyed. CUDA may read the memory behind the handle of a stream, so that a call
// with one that was destroyed may end the process. PyTorch's allocators keep such handles with their blocks, and do not
// pass them to CUDA. So the library passes none of them to CUDA, either.
#pragma once

#include <cuda.h>

namespace stalloc {

// The program is about to destroy the stream. False: it has done that before. If it is true and CUDA then refuses, call
// `note_stream_created`. Thread-safe, as are the others.
bool note_stream_destroyed(CUstream stream) noexcept;
// The handle is that of a stream again.
void note_stream_created(CUstream stream) noexcept;
// Whether that was the last that was noted of this handle. Lock-free as long as nothing was. False also for a stream
// that ended with its context, or for which the host had no memory.
bool is_destroyed(CUstream stream) noexcept;

}  // namespace stalloc
