// SPDX-License-Identifier: Apache-2.0
// simcuda with heaps on it, for tests of the session.
#pragma once

#include <cuda.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "interpose/session/captures.h"
#include "interpose/session/cuda.h"
#include "interpose/session/driver_functions.h"
#include "interpose/session/heaps.h"
#include "tests/unit/session/driver.h"

// Newer headers declare later versions only.
extern "C" CUresult CUDAAPI cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device);

namespace stalloc::test {

// On device 0, and makes it current.
inline CUresult create_context(CUcontext* context) { return cuCtxCreate_v2(context, 0, 0); }

// No context is current and no primary one active at first and in the end. Throws std::runtime_error.
class Machine {
 public:
  explicit Machine(plan::Plan plan = {}) {
    must(cuInit(0));
    const char* missing = nullptr;
    const auto functions = find_driver_functions(&find_function, &missing);
    if (!functions) throw std::runtime_error(missing);
    heaps = std::make_unique<Heaps>(std::move(plan), cuda, serve::RealDriver(*functions, captures.gate(), {}),
                                    serve::HeapOptions{});
  }
  ~Machine() {
    heaps.reset();
    while (primary_state() != 0 && cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS) {
    }
    cuCtxSetCurrent(nullptr);
  }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  // Makes the primary context of a device active, once more, and current.
  CUcontext enter(int device = 0) const {
    CUcontext primary = nullptr;
    must(cuDevicePrimaryCtxRetain(&primary, device));
    must(cuCtxSetCurrent(primary));
    return primary;
  }
  [[nodiscard]] int primary_state() const {
    unsigned flags = 0;
    int active = 0;
    must(cuDevicePrimaryCtxGetState(0, &flags, &active));
    return active;
  }
  [[nodiscard]] std::size_t free_bytes() const { return info().first; }
  [[nodiscard]] std::size_t total_bytes() const { return info().second; }

  Cuda cuda{&find_function};
  Captures captures{cuda};
  std::unique_ptr<Heaps> heaps;

 private:
  static void must(CUresult result) {
    if (result != CUDA_SUCCESS) throw std::runtime_error("simcuda returned " + std::to_string(result));
  }
  static std::pair<std::size_t, std::size_t> info() {
    std::size_t free = 0;
    std::size_t total = 0;
    must(cuMemGetInfo(&free, &total));
    return {free, total};
  }
};

}  // namespace stalloc::test
