// SPDX-License-Identifier: Apache-2.0
// Which stream of the program a call names.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace stalloc {

// A stream as the program named it, made unambiguous: the legacy stream is {CU_STREAM_LEGACY, 0}, a per-thread
// default stream {CU_STREAM_PER_THREAD, number of its thread}, any other {handle, 0}.
struct StreamKey {
  CUstream handle = nullptr;
  std::uint64_t thread = 0;
  friend bool operator==(const StreamKey&, const StreamKey&) = default;

  // True for the two handles that mean another stream under another context.
  [[nodiscard]] bool is_default() const noexcept { return handle == CU_STREAM_LEGACY || is_per_thread(); }
  [[nodiscard]] bool is_per_thread() const noexcept { return handle == CU_STREAM_PER_THREAD; }
};

// `per_thread`: the call came through a per-thread-default-stream (_ptsz) entry point, where 0 means the thread's own.
StreamKey make_stream_key(CUstream stream, bool per_thread) noexcept;

// A number of the calling thread: never 0, and never given to another thread, unlike thread ids of the system.
std::uint64_t this_thread_number() noexcept;

}  // namespace stalloc
