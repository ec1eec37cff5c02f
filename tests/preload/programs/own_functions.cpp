// SPDX-License-Identifier: Apache-2.0
// A library of a program's own that has functions of CUDA's names, as stand-ins for tests and tracers do.
#include <cstddef>

extern "C" {
__attribute__((visibility("default"))) int cuMemAlloc_v2(unsigned long long*, std::size_t) { return 4201; }
__attribute__((visibility("default"))) int cudaMalloc(void**, std::size_t) { return 4202; }
__attribute__((visibility("default"))) int cudaMallocAsync(void**, std::size_t, void*) { return 4203; }
__attribute__((visibility("default"))) int cudaFree(void*) { return 4204; }
}
