// SPDX-License-Identifier: Apache-2.0
// The wait that cuMemFree makes, for memory that stalloc serves.
#pragma once

#include <cuda.h>

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <vector>

#include "interpose/serve/driver/driver.h"

namespace stalloc::serve {

// cuMemFree waits for the work of its context, fails during some captures, and reports errors of the device. No other
// function of the driver does exactly this: cuCtxSynchronize breaks every capture of the context. So the fence calls
// cuMemFree for a small block of CUDA's own memory. Thread-safe, with a lock of its own.
class FreeFence {
 public:
  FreeFence(Driver& driver, CUcontext context) : driver_(driver), context_(context) {}
  FreeFence(const FreeFence&) = delete;
  FreeFence& operator=(const FreeFence&) = delete;

  // Allocates the spare block, which is used when the device has no memory for another block. Idempotent. False: the
  // driver refused, or the fence is closed.
  bool prepare();

  // Waits for all work that was given to the context before the call. Returns what cuMemFree returns. The caller must
  // hold no lock, since that work may itself depend on another thread of the program. On a full device, threads use the
  // spare block one after another.
  CUresult wait();

  // Call when the context ends. Frees the blocks if the context still exists; later blocks are not kept.
  void close(bool context_lives);

 private:
  CUresult take(CUdeviceptr* block, bool* spare);
  void return_spare();
  void keep(CUdeviceptr block);

  Driver& driver_;
  const CUcontext context_;
  std::mutex mutex_;                 // protects all members below
  std::vector<CUdeviceptr> blocks_;  // spare blocks
  std::size_t in_use_ = 0;           // spare blocks that threads use for a wait; not in blocks_
  std::condition_variable returned_;
  bool closed_ = false;
};

}  // namespace stalloc::serve
