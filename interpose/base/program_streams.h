// SPDX-License-Identifier: Apache-2.0
// What the library has seen of the program's streams, for questions that CUDA must not be asked:
//
//   Destroyed streams   CUDA may read the memory behind the handle of a stream, so that a call with one that was
//                       destroyed may end the process. PyTorch's allocators keep such handles with their blocks, and
//                       do not pass them to CUDA. So the library passes none of them to CUDA, either.
//   Flags               cuStreamGetFlags of a stream under capture invalidates the capture, in every mode.
#pragma once

#include <cuda.h>

namespace stalloc {

// All functions are thread-safe and call no driver function.

// CUDA has created a stream with these flags of cuStreamCreate. The handle may be that of a stream that was destroyed.
void note_stream_created(CUstream stream, unsigned flags) noexcept;
// The program is about to destroy the stream. False: it has done that before. If it is true and CUDA then refuses, call
// `note_stream_kept`.
bool note_stream_destroyed(CUstream stream) noexcept;
void note_stream_kept(CUstream stream) noexcept;

// Whether `note_stream_destroyed` was the last that was noted of this handle. Lock-free as long as no stream was
// destroyed. False also for a stream that ended with its context, or for which the host had no memory.
bool is_destroyed(CUstream stream) noexcept;
// Whether the stream was created with CU_STREAM_NON_BLOCKING: then it and the legacy stream do not wait for each other.
// False also for the default streams, and for a stream of which nothing is known.
bool is_non_blocking(CUstream stream) noexcept;

}  // namespace stalloc
