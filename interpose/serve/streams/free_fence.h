// SPDX-License-Identifier: Apache-2.0
// The wait of cuMemFree, for memory that we serve.
#pragma once

#include <cuda.h>

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <vector>

#include "interpose/serve/driver/driver.h"

namespace stalloc::serve {

// cuMemFree waits for the work of its context, refuses some captures and reports what went wrong on the device, and no
// other function of the driver does exactly this: cuCtxSynchronize breaks every capture of the context. So a free of
// served memory frees a small block of CUDA's own instead. Thread-safe.
class FreeFence {
 public:
  FreeFence(Driver& driver, CUcontext context) : driver_(driver), context_(context) {}
  FreeFence(const FreeFence&) = delete;
  FreeFence& operator=(const FreeFence&) = delete;

  // Allocates the spare block that is used when the device has no memory for another one. False: the driver refused.
  bool prepare();

  // Waits for all work that was given to the context before the call; returns what cuMemFree returns. Hold no lock: the
  // work may itself wait for another thread of the program. On a full device, threads take turns with the spare block.
  CUresult wait();

  // The context ends: gives the blocks back if it is still there, and takes none from now on.
  void close(bool context_lives);

 private:
  CUresult take(CUdeviceptr* block, bool* spare);
  void return_spare();
  void keep(CUdeviceptr block);

  Driver& driver_;
  const CUcontext context_;
  std::mutex mutex_;                 // guards what follows
  std::vector<CUdeviceptr> blocks_;  // spare blocks
  std::size_t in_use_ = 0;           // further spare blocks, which threads wait with
  std::condition_variable returned_;
  bool closed_ = false;
};

}  // namespace stalloc::serve
