// SPDX-License-Identifier: Apache-2.0
// Identifies the stream of the program that a call names.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace stalloc {

// A stream as the program named it, in a unique form: the legacy stream is {CU_STREAM_LEGACY, 0}, a per-thread default
// stream {CU_STREAM_PER_THREAD, number of its thread}, any other {handle, 0}.
struct StreamKey {
  CUstream handle = nullptr;
  std::uint64_t thread = 0;
  friend bool operator==(const StreamKey&, const StreamKey&) = default;

  // True for the two handles that mean a different stream in each context.
  [[nodiscard]] bool is_default() const noexcept { return handle == CU_STREAM_LEGACY || is_per_thread(); }
  [[nodiscard]] bool is_per_thread() const noexcept { return handle == CU_STREAM_PER_THREAD; }
};

// `per_thread`: the call came through a per-thread-default-stream (_ptsz) entry point, where 0 means the thread's own.
StreamKey make_stream_key(CUstream stream, bool per_thread) noexcept;

// The number of the calling thread. It is never 0, and is never given to another thread, unlike the system's thread
// ids.
std::uint64_t this_thread_number() noexcept;

}  // namespace stalloc
