// SPDX-License-Identifier: Apache-2.0
// A stand-in for a communication library, which the preloaded library recognizes by its file name. It allocates its own
// buffers and shares them with other processes.
#include "tests/e2e/communication.h"

#include "tests/simcuda/runtime/simcudart.h"

const char* share_a_buffer(std::size_t bytes) {
  void* buffer = nullptr;
  cudaError_t result = cudaMalloc(&buffer, bytes);
  if (result != cudaSuccess) return cudaGetErrorName(result);
  cudaIpcMemHandle_t handle{};
  result = cudaIpcGetMemHandle(&handle, buffer);
  const cudaError_t freed = cudaFree(buffer);
  return cudaGetErrorName(result != cudaSuccess ? result : freed);
}
