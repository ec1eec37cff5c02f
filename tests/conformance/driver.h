// SPDX-License-Identifier: Apache-2.0
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
  apply(cuMemsetD8Async) apply(cuMemsetD32Async) apply(cuMemsetD2D32Async) \
  apply(cuMemcpyDtoHAsync) apply(cuMemcpyDtoDAsync) apply(cuMemcpy2DAsync) \
  apply(cuStreamCreate) apply(cuStreamDestroy) apply(cuStreamSynchronize) apply(cuStreamQuery) \
  apply(cuStreamGetFlags) apply(cuStreamGetCtx) apply(cuStreamGetPriority) \
  apply(cuStreamWaitEvent) apply(cuLaunchHostFunc) \
  apply(cuStreamBeginCapture) apply(cuStreamEndCapture) \
  apply(cuGraphInstantiate) apply(cuGraphLaunch) apply(cuGraphDestroy) apply(cuGraphExecDestroy) \
  apply(cuEventCreate) apply(cuEventDestroy) apply(cuEventRecord) apply(cuEventQuery) apply(cuEventSynchronize)

// Functions that not every driver has: checks ask before they call.
#define CONFORMANCE_OPTIONAL_FUNCTIONS(apply) \
  apply(cuDevicePrimaryCtxGetState) apply(cuCtxGetId) apply(cuDeviceGetMemPool) apply(cuDeviceSetMemPool) \
  apply(cuMemPoolGetAccess) apply(cuMemPoolExportToShareableHandle) apply(cuMemPoolExportPointer) \
  apply(cuMemAllocPitch) apply(cuMemAllocManaged) apply(cuArrayCreate) apply(cuArrayDestroy) \
  apply(cuMemCreate) apply(cuMemRelease) apply(cuMemRetainAllocationHandle) apply(cuMemGetHandleForAddressRange) \
  apply(cuMemGetAccess) apply(cuMemSetAccess) apply(cuMemMap) apply(cuMemUnmap) apply(cuMemAddressFree) \
  apply(cuPointerSetAttribute) apply(cuMemcpyPeer) apply(cuMemcpyPeerAsync) \
  apply(cuModuleLoadData) apply(cuModuleUnload) apply(cuModuleGetFunction) apply(cuLaunchKernel) \
  apply(cuLibraryLoadData) apply(cuLibraryUnload) apply(cuLibraryGetKernel) apply(cuLibraryGetGlobal) apply(cuLibraryGetModule) \
  apply(cuKernelGetFunction) apply(cuOccupancyMaxActiveBlocksPerMultiprocessor) \
  apply(cuGraphCreate) apply(cuGraphAddKernelNode) apply(cuGraphExecKernelNodeSetParams) apply(cuGraphExecUpdate) \
  apply(cuStreamIsCapturing) apply(cuThreadExchangeStreamCaptureMode) apply(cuEventRecordWithFlags) apply(cuGraphGetNodes) apply(cuDeviceGraphMemTrim) \
  CONFORMANCE_GREEN_CONTEXTS(apply)
#if CUDA_VERSION >= 12040
#define CONFORMANCE_GREEN_CONTEXTS(apply) \
  apply(cuGreenCtxCreate) apply(cuGreenCtxDestroy) apply(cuGreenCtxStreamCreate) apply(cuCtxFromGreenCtx) \
  apply(cuDeviceGetDevResource) apply(cuDevResourceGenerateDesc)
#else
#define CONFORMANCE_GREEN_CONTEXTS(apply)
#endif
// clang-format on

// The functions, each a member of its own name (which cuda.h's macros may have changed).
struct Driver {
#define CONFORMANCE_MEMBER(name) decltype(&::name) name = nullptr;
  CONFORMANCE_FUNCTIONS(CONFORMANCE_MEMBER)
  CONFORMANCE_OPTIONAL_FUNCTIONS(CONFORMANCE_MEMBER)  // null when the driver has none
#undef CONFORMANCE_MEMBER
  // cuCtxCreate in the form that this signature has: later forms take more arguments.
  CUresult (*create_context)(CUcontext*, unsigned flags, CUdevice) = nullptr;
  // First versions of functions, with which old programs are linked. Null when the driver has none.
  CUresult (*first_primary_reset)(CUdevice) = nullptr;
  CUresult (*first_primary_release)(CUdevice) = nullptr;
  CUresult (*first_context_destroy)(CUcontext) = nullptr;
  CUresult (*first_stream_destroy)(CUstream) = nullptr;
};

// How a program finds the functions: by their exported names, or by cuGetProcAddress as the CUDA runtime does, or by
// cuGetProcAddress as in programs compiled for per-thread default streams (stream 0 is then the thread's own).
enum class Road { Symbol, ProcAddress, PerThread };

// Where the functions are searched: in libcuda.so.1, which is opened, or in the libraries with which the program is
// linked.
enum class Origin { Opened, Linked };

// Finds the driver and initializes it. Throws std::runtime_error, one line, when a function is missing or CUDA cannot
// start.
Driver load_driver(Road road, Origin origin = Origin::Opened);

}  // namespace stalloc::conformance
