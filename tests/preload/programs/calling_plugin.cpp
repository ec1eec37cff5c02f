// SPDX-License-Identifier: Apache-2.0
// A plugin that calls CUDA's runtime whenever it is told to.
#include <cuda_runtime_api.h>

extern "C" __attribute__((visibility("default"))) bool use_plugin() { return cudaSetDevice(0) == cudaSuccess; }
