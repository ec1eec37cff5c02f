// The CUDA driver as this program calls it: found at run time, so that the same binary runs on a GPU and on simcuda,
// alone and under a preloaded library.
#pragma once

#include <cuda.h>

#include <string>

namespace stalloc::conformance {

// clang-format off
#define CONFORMANCE_FUNCTIONS(apply) \
  apply(cuGetErrorName) apply(cuDeviceGetCount) apply(cuDeviceCanAccessPeer) \
  apply(cuDevicePrimaryCtxRetain) apply(cuDevicePrimaryCtxRelease) apply(cuDevicePrimaryCtxReset) \
  apply(cuCtxSetCurrent) apply(cuCtxGetCurrent) apply(cuCtxSynchronize) apply(cuCtxDestroy) \
  apply(cuCtxEnablePeerAccess) apply(cuCtxDisablePeerAccess) \
  apply(cuMemAlloc) apply(cuMemFree) apply(cuMemAllocAsync) apply(cuMemAllocFromPoolAsync) apply(cuMemFreeAsync) \
  apply(cuMemGetInfo) apply(cuMemGetAddressRange) apply(cuPointerGetAttribute) apply(cuPointerGetAttributes) apply(cuIpcGetMemHandle) \
  apply(cuMemHostAlloc) apply(cuMemFreeHost) \
  apply(cuDeviceGetDefaultMemPool) apply(cuMemPoolCreate) apply(cuMemPoolDestroy) apply(cuMemPoolTrimTo) \
  apply(cuMemPoolGetAttribute) apply(cuMemPoolSetAttribute) apply(cuMemPoolSetAccess) \
  apply(cuMemsetD8Async) apply(cuMemsetD32Async) \
  apply(cuMemcpyDtoHAsync) apply(cuMemcpyDtoDAsync) \
  apply(cuStreamCreate) apply(cuStreamDestroy) apply(cuStreamSynchronize) apply(cuStreamQuery) \
  apply(cuStreamWaitEvent) apply(cuLaunchHostFunc) \
  apply(cuStreamBeginCapture) apply(cuStreamEndCapture) \
  apply(cuGraphInstantiate) apply(cuGraphLaunch) apply(cuGraphDestroy) apply(cuGraphExecDestroy) \
  apply(cuEventCreate) apply(cuEventDestroy) apply(cuEventRecord) apply(cuEventQuery) apply(cuEventSynchronize)
// clang-format on

// The functions, each a member of its own name (as cuda.h's macros make it).
struct Driver {
#define CONFORMANCE_MEMBER(name) decltype(&::name) name = nullptr;
  CONFORMANCE_FUNCTIONS(CONFORMANCE_MEMBER)
#undef CONFORMANCE_MEMBER
  // This form only: later ones take more arguments.
  CUresult (*create_context)(CUcontext*, unsigned flags, CUdevice) = nullptr;
};

// How a program comes by the functions: their exported names, or cuGetProcAddress, as the CUDA runtime does, also for
// programs that were compiled for per-thread default streams (stream 0 is then the thread's own).
enum class Road { Symbol, ProcAddress, PerThread };

// Opens libcuda.so.1 and initialises it. Throws std::runtime_error, one line, when a function is missing or CUDA
// cannot start.
Driver load_driver(Road road);

}  // namespace stalloc::conformance
