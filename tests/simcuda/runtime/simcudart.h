// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA runtime that simcuda's libcudart offers to test programs. Values and layouts are CUDA's own, so
// that a program that uses only this runs on a real runtime too.
#pragma once

#include <cuda.h>

#include <cstddef>

using cudaStream_t = CUstream;
using cudaEvent_t = CUevent;
using cudaMemPool_t = CUmemoryPool;
using cudaGraph_t = CUgraph;
using cudaGraphExec_t = CUgraphExec;
using cudaHostFn_t = CUhostFn;
using cudaIpcMemHandle_t = CUipcMemHandle;

// The runtime's error codes are the driver's. These are the ones that simcuda's runtime itself returns, or that tests
// name.
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInitializationError = 3,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorPeerAccessAlreadyEnabled = 704,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
};

enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4,
};

enum cudaMemPoolAttr {
  cudaMemPoolAttrReleaseThreshold = 4,
  cudaMemPoolAttrReservedMemCurrent = 5,
  cudaMemPoolAttrReservedMemHigh = 6,
  cudaMemPoolAttrUsedMemCurrent = 7,
  cudaMemPoolAttrUsedMemHigh = 8,
};

enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal = 0,
  cudaStreamCaptureModeThreadLocal = 1,
  cudaStreamCaptureModeRelaxed = 2,
};

enum cudaStreamCaptureStatus {
  cudaStreamCaptureStatusNone = 0,
  cudaStreamCaptureStatusActive = 1,
  cudaStreamCaptureStatusInvalidated = 2,
};

inline constexpr unsigned cudaStreamNonBlocking = 1;
inline constexpr unsigned cudaEventDisableTiming = 2;
inline const cudaStream_t cudaStreamLegacy = CU_STREAM_LEGACY;
inline const cudaStream_t cudaStreamPerThread = CU_STREAM_PER_THREAD;

extern "C" {
#define SIMCUDART_PLAIN(function, parameters, call) cudaError_t function parameters;
#define SIMCUDART_WITHOUT_CONTEXT(function, parameters, call) cudaError_t function parameters;
#define SIMCUDART_STREAM(function, suffix, parameters, call) \
  cudaError_t function parameters;                           \
  cudaError_t function##suffix parameters;
#include "tests/simcuda/runtime/functions.h"
#undef SIMCUDART_PLAIN
#undef SIMCUDART_WITHOUT_CONTEXT
#undef SIMCUDART_STREAM
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaRuntimeGetVersion(int* version);
}
