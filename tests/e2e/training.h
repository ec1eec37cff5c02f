// SPDX-License-Identifier: Apache-2.0
// A small run that allocates as a training run does: parameters, a first step that creates optimizer states, then equal
// steps of microbatches with forward and backward passes, recomputation, and gradients on a stream of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "tests/e2e/host.h"

namespace stalloc::e2e {

struct Shape {
  std::uint64_t seed = 1;
  std::size_t layers = 6;
  std::size_t microbatches = 2;
  std::size_t streams = 1;       // above 1: gradients are reduced on the second
  bool recompute = true;         // false: every layer's tensors live until its backward pass
  bool backward_thread = false;  // the backward pass runs in another thread, as PyTorch's does
  bool blocking = false;         // the streams wait for the legacy stream
};

// How a step differs from the recorded ones.
struct StepChange {
  double size_factor = 1;          // of every activation
  std::size_t skipped_layers = 0;  // the last ones are left out
  std::size_t extra_tensors = 0;   // allocated at the start of the backward pass, freed at the end of the step
  bool sync_frees = false;         // activations are freed by cudaFree
  bool late_frees = false;         // activations live until the end of the step after this one
  bool other_stream = false;       // activations are allocated, used and freed on the last stream
};

class Training {
 public:
  // `tick` is called before each layer's forward and backward pass.
  Training(
      Host& host, const Shape& shape, int device, std::function<void()> tick = [] {});

  void step(const StepChange& change = {});
  // A forward pass without a backward pass, of other sizes.
  void evaluate();
  [[nodiscard]] cudaStream_t main_stream() const { return streams_.front(); }

 private:
  // The size in bytes, which depends only on the seed, the layer and the tensor's number in it.
  [[nodiscard]] std::size_t bytes_of(std::size_t layer, std::size_t tensor) const;
  Host::Id activation(const StepChange& change, std::size_t layer, std::size_t tensor);
  void forward(const StepChange& change, std::size_t layers, std::vector<std::vector<Host::Id>>& saved);
  void backward(const StepChange& change, std::size_t layers, std::vector<std::vector<Host::Id>>& saved);
  void reduce_gradient(std::size_t layer);
  void release(Host::Id tensor, const StepChange& change);

  Host& host_;
  const Shape shape_;
  const int device_;
  const std::function<void()> tick_;
  std::vector<Host::Id> late_;  // activations of the step before that are still live
  std::vector<cudaStream_t> streams_;
  std::vector<Host::Id> parameters_;
  std::vector<Host::Id> optimizer_;
  std::vector<Host::Id> gradients_;
};

}  // namespace stalloc::e2e
