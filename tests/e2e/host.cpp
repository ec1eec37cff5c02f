// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/host.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace stalloc::e2e {
namespace {

CUdeviceptr number(void* address) { return reinterpret_cast<CUdeviceptr>(address); }

int current_device() {
  int device = 0;
  must(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

// Makes later work on `later` wait for what is queued on `earlier`.
void order(cudaStream_t earlier, cudaStream_t later) {
  if (earlier == later) return;
  cudaEvent_t event = nullptr;
  must(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
  must(cudaEventRecord(event, earlier), "cudaEventRecord");
  must(cudaStreamWaitEvent(later, event, 0), "cudaStreamWaitEvent");
  must(cudaEventDestroy(event), "cudaEventDestroy");
}

}  // namespace

void must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "host: %s: %s\n", what, cudaGetErrorName(error));
  std::exit(3);
}

Host::Host(const replay::Api& api) : verifier_(api, replay::Verify::Stamps), physical_(api) {}

Host::Id Host::allocate(std::size_t bytes, cudaStream_t stream) {
  void* address = nullptr;
  must(cudaMallocAsync(&address, bytes, stream), "cudaMallocAsync");
  return admit(address, bytes, stream, false);
}

Host::Id Host::allocate_sync(std::size_t bytes) {
  void* address = nullptr;
  must(cudaMalloc(&address, bytes), "cudaMalloc");
  return admit(address, bytes, nullptr, true);
}

Host::Id Host::admit(void* address, std::size_t bytes, cudaStream_t stream, bool plain) {
  const std::scoped_lock lock(mutex_);
  const Id id = next_++;
  live_[id] = {address, bytes, stream, current_device(), plain};
  if (physical_.add(id, number(address), bytes)) ++figures_.overlaps;
  ++figures_.requests;
  figures_.live_bytes += bytes;
  figures_.peak_live_bytes = std::max(figures_.peak_live_bytes, figures_.live_bytes);
  must(static_cast<cudaError_t>(verifier_.write(id, number(address), bytes, stream)), "filling a tensor");
  return id;
}

void Host::check(Id tensor, const Tensor& what, cudaStream_t stream) {
  ++figures_.checked;
  must(static_cast<cudaError_t>(verifier_.check(tensor, number(what.address), what.bytes, stream)),
       "checking a tensor");
}

void Host::use(Id tensor, cudaStream_t stream) {
  const std::scoped_lock lock(mutex_);
  const Tensor& what = live_.at(tensor);
  order(what.stream, stream);
  check(tensor, what, stream);
  order(stream, what.stream);
}

Host::Tensor Host::dismiss(Id tensor) {
  const std::scoped_lock lock(mutex_);
  const Tensor what = live_.at(tensor);
  live_.erase(tensor);
  physical_.remove(tensor);
  figures_.live_bytes -= what.bytes;
  check(tensor, what, what.stream);
  return what;
}

void Host::free(Id tensor) {
  const Tensor what = dismiss(tensor);
  must(cudaFreeAsync(what.address, what.stream), "cudaFreeAsync");
}

void Host::free_on(Id tensor, cudaStream_t stream) {
  const Tensor what = dismiss(tensor);
  order(what.stream, stream);
  must(cudaFreeAsync(what.address, stream), "cudaFreeAsync");
}

// When cudaFree frees a pool's memory CUDA does not wait: it relies on the program that nothing uses the memory any
// more.
void Host::free_sync(Id tensor) {
  const Tensor what = dismiss(tensor);
  if (!what.plain) must(cudaStreamSynchronize(what.stream), "cudaStreamSynchronize");
  must(cudaFree(what.address), "cudaFree");
}

void* Host::address(Id tensor) const {
  const std::scoped_lock lock(mutex_);
  return live_.at(tensor).address;
}

void Host::check_all() {
  {
    const std::scoped_lock lock(mutex_);
    for (const auto& [id, tensor] : live_) {
      if (tensor.device == current_device()) check(id, tensor, tensor.stream);
    }
  }
  must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

Host::Figures Host::figures() const {
  const std::scoped_lock lock(mutex_);
  Figures figures = figures_;
  figures.wrong = verifier_.mismatched();
  return figures;
}

}  // namespace stalloc::e2e
