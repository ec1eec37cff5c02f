// SPDX-License-Identifier: Apache-2.0
// Streams of the library, each of which joins several streams of the program: it waits for their work. A block that
// several streams used is free once such a stream has finished, so that no stream of the program has to wait for
// another.
#pragma once

#include <cuda.h>

#include <array>
#include <compare>
#include <cstddef>
#include <mutex>
#include <span>
#include <vector>

#include "interpose/serve/driver/driver.h"
#include "interpose/serve/heap/heap.h"

namespace stalloc::torch {

struct StreamInContext {
  CUstream stream = nullptr;  // the legacy default stream as CU_STREAM_LEGACY; null: all work of the context
  CUcontext context = nullptr;
  friend auto operator<=>(const StreamInContext&, const StreamInContext&) = default;
};

// The join streams of one device. Thread-safe. Never destroyed while the device's context may live.
class JoinStreams {
 public:
  // Sets `joined` to a stream of the heap's context, which is current, that waits for all work that `streams` were
  // given so far. Calls with the same set of streams get the same join stream, so that a slow stream delays only frees
  // of blocks that it used; this holds as long as there are at most kMaxStreams different sets.
  //
  // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: one of the streams is being captured, or any is where all work of a context
  // is to be waited for. CUDA_ERROR_NOT_SUPPORTED: the driver cannot wait for that. Any other error is the driver's.
  // After an error, a join stream may wait for more than it had to, which delays frees but is correct.
  CUresult join(serve::Driver& driver, serve::Heap& heap, std::span<const StreamInContext> streams,
                CUstream* joined) noexcept;

 private:
  struct Entry {
    std::vector<StreamInContext> streams;  // sorted
    CUstream joined = nullptr;
    bool is_behind_old_work = false;
    std::size_t used_at = 0;
  };
  static constexpr std::size_t kMaxStreams = 8;

  Entry& entry_for(std::vector<StreamInContext> streams);

  std::mutex mutex_;
  std::array<Entry, kMaxStreams> entries_;
  std::size_t clock_ = 0;
};

}  // namespace stalloc::torch
