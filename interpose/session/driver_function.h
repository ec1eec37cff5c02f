// SPDX-License-Identifier: Apache-2.0
// One function of the CUDA driver, by its exported name.
#pragma once

#include <cuda.h>

#include <atomic>

namespace stalloc {

// Finds the driver's function of that exported name. Null: there is none, or no driver is loaded yet. Thread-safe.
using FindDriverFunction = void* (*)(const char* symbol) noexcept;

template <class Signature>
class DriverFunction;

// A function that is looked up when it is first needed, since the driver is loaded by then. Thread-safe; lock-free once
// found.
template <class... Parameters>
class DriverFunction<CUresult(Parameters...)> {
 public:
  using Pointer = CUresult(CUDAAPI*)(Parameters...);

  // `symbol` must live as long as this.
  constexpr DriverFunction(FindDriverFunction find, const char* symbol) noexcept : find_(find), symbol_(symbol) {}

  // Null when the driver has no such function.
  [[nodiscard]] Pointer get() const noexcept {
    const Pointer known = known_.load(std::memory_order_relaxed);  // code, which does not change
    return known != nullptr ? known : look_up();
  }
  // CUDA_ERROR_NOT_SUPPORTED when the driver has no such function.
  CUresult operator()(Parameters... parameters) const noexcept {
    const Pointer function = get();
    return function == nullptr ? CUDA_ERROR_NOT_SUPPORTED : function(parameters...);
  }

 private:
  [[gnu::noinline]] Pointer look_up() const noexcept {
    const auto found = reinterpret_cast<Pointer>(find_(symbol_));
    known_.store(found, std::memory_order_relaxed);
    return found;
  }

  mutable std::atomic<Pointer> known_{nullptr};
  FindDriverFunction find_;
  const char* symbol_;
};

}  // namespace stalloc
