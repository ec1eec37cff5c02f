// SPDX-License-Identifier: Apache-2.0
// The CUDA functions that the replay calls, found at run time: the same program runs on a real driver and on simcuda,
// and everything preloaded sees its calls.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <string>

#include "plan/expected.h"

namespace stalloc::replay {

// Driver functions, under the names that cuda.h's macros make of them.
#define REPLAY_DRIVER_FUNCTIONS(apply)                                                                                 \
  apply(cuInit) apply(cuDeviceGetCount) apply(cuDevicePrimaryCtxRetain) apply(cuCtxSetCurrent) apply(cuCtxSynchronize) \
      apply(cuMemAlloc) apply(cuMemFree) apply(cuMemAllocAsync) apply(cuMemAllocFromPoolAsync) apply(cuMemFreeAsync)   \
          apply(cuMemGetInfo) apply(cuMemHostAlloc) apply(cuMemsetD8Async) apply(cuMemsetD32Async)                     \
              apply(cuMemsetD2D32Async) apply(cuMemcpyDtoHAsync) apply(cuMemcpy2DAsync) apply(cuLaunchHostFunc)        \
                  apply(cuStreamCreate) apply(cuStreamSynchronize) apply(cuStreamWaitEvent) apply(cuEventCreate)       \
                      apply(cuEventRecord) apply(cuGetErrorName) apply(cuDeviceGetDefaultMemPool)                      \
                          apply(cuMemPoolSetAttribute)

struct Driver {
#define REPLAY_MEMBER(name) decltype(&::name) name = nullptr;
  REPLAY_DRIVER_FUNCTIONS(REPLAY_MEMBER)
#undef REPLAY_MEMBER
};

// Allocation through the driver or through the runtime; the runtime's error codes are the driver's.
class Api {
 public:
  enum class Road { Runtime, Driver };

  // The error is one line: which library or function is missing.
  static plan::Expected<Api> load(Road road);

  const Driver& driver() const { return driver_; }
  // Makes the device's primary context current in this thread.
  CUresult use_device(int device) const;
  CUresult alloc(CUdeviceptr* address, std::size_t bytes) const;
  CUresult alloc_async(CUdeviceptr* address, std::size_t bytes, CUstream stream) const;
  CUresult alloc_from_pool(CUdeviceptr* address, std::size_t bytes, CUmemoryPool pool, CUstream stream) const;
  CUresult free(CUdeviceptr address) const;
  CUresult free_async(CUdeviceptr address, CUstream stream) const;
  std::string describe(CUresult result) const;
  // A function that only simcuda's driver exports; null on a real one.
  void* simcuda_function(const char* name) const;

 private:
  struct Runtime {
    int (*cudaSetDevice)(int) = nullptr;
    int (*cudaFree)(void*) = nullptr;
    int (*cudaMalloc)(void**, std::size_t) = nullptr;
    int (*cudaMallocAsync)(void**, std::size_t, CUstream) = nullptr;
    int (*cudaMallocFromPoolAsync)(void**, std::size_t, CUmemoryPool, CUstream) = nullptr;
    int (*cudaFreeAsync)(void*, CUstream) = nullptr;
  };

  std::string load_driver();
  std::string load_runtime();

  Road road_ = Road::Driver;
  void* library_ = nullptr;
  Driver driver_;
  Runtime runtime_;
};

}  // namespace stalloc::replay
