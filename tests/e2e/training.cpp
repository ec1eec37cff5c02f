// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/training.h"

#include <thread>
#include <utility>

namespace stalloc::e2e {
namespace {

// SplitMix64 (Steele, Lea, Flood 2014).
std::uint64_t mix(std::uint64_t z) {
  z = (z + 0x9e3779b97f4a7c15ULL) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

}  // namespace

Training::Training(Host& host, const Shape& shape, int device, std::function<void()> tick)
    : host_(host), shape_(shape), device_(device), tick_(std::move(tick)) {
  must(cudaSetDevice(device), "cudaSetDevice");
  for (std::size_t i = 0; i < shape.streams; ++i) {
    cudaStream_t stream = nullptr;
    must(cudaStreamCreateWithFlags(&stream, shape.blocking ? 0 : cudaStreamNonBlocking), "cudaStreamCreate");
    streams_.push_back(stream);
  }
  for (std::size_t layer = 0; layer < shape.layers; ++layer) {
    parameters_.push_back(host.allocate(bytes_of(layer, 0), main_stream()));
    parameters_.push_back(host.allocate(4 + 4 * layer, main_stream()));
  }
}

std::size_t Training::bytes_of(std::size_t layer, std::size_t tensor) const {
  const std::uint64_t random = mix(mix(shape_.seed + layer) + tensor);
  switch (random % 4) {
    case 0:
      return 1 + random / 4 % 4096;
    case 1:
      return 4 * (1 + random / 4 % (kMiB / 8));
    default:
      return kMiB / 2 + random / 4 % (12 * kMiB);
  }
}

Host::Id Training::activation(const StepChange& change, std::size_t layer, std::size_t tensor) {
  const auto bytes = static_cast<std::size_t>(static_cast<double>(bytes_of(layer, tensor)) * change.size_factor);
  return host_.allocate(bytes > 0 ? bytes : 1, change.other_stream ? streams_.back() : main_stream());
}

void Training::step(const StepChange& change) {
  must(cudaSetDevice(device_), "cudaSetDevice");
  const std::size_t layers = shape_.layers - change.skipped_layers;
  const std::vector<Host::Id> late = std::exchange(late_, {});
  for (std::size_t microbatch = 0; microbatch < shape_.microbatches; ++microbatch) {
    std::vector<std::vector<Host::Id>> saved;
    forward(change, layers, saved);
    if (shape_.backward_thread) {
      std::thread([&] {
        must(cudaSetDevice(device_), "cudaSetDevice");
        backward(change, layers, saved);
      }).join();
    } else {
      backward(change, layers, saved);
    }
  }
  if (optimizer_.empty()) {
    for (std::size_t layer = 0; layer < shape_.layers; ++layer) {
      optimizer_.push_back(host_.allocate(bytes_of(layer, 0), main_stream()));
      optimizer_.push_back(host_.allocate(bytes_of(layer, 0), main_stream()));
    }
  }
  const Host::Id update = host_.allocate(3 * kMiB, main_stream());
  for (const Host::Id gradient : gradients_) host_.free(gradient);
  gradients_.clear();
  host_.free(update);
  for (const Host::Id tensor : late) host_.free(tensor);
}

void Training::forward(const StepChange& change, std::size_t layers, std::vector<std::vector<Host::Id>>& saved) {
  for (std::size_t layer = 0; layer < layers; ++layer) {
    tick_();
    std::vector<Host::Id> kept{activation(change, layer, 1)};
    std::vector<Host::Id> inner;
    for (std::size_t tensor = 2; tensor < 6; ++tensor) inner.push_back(activation(change, layer, tensor));
    const Host::Id workspace = activation(change, layer, 6);
    release(workspace, change);
    for (const Host::Id tensor : inner) {
      if (shape_.recompute) {
        release(tensor, change);
      } else {
        kept.push_back(tensor);
      }
    }
    saved.push_back(std::move(kept));
  }
}

void Training::backward(const StepChange& change, std::size_t layers, std::vector<std::vector<Host::Id>>& saved) {
  std::vector<Host::Id> extra;
  for (std::size_t i = 0; i < change.extra_tensors; ++i) {
    extra.push_back(host_.allocate(bytes_of(shape_.layers + i, 9), main_stream()));
  }
  for (std::size_t layer = layers; layer-- > 0;) {
    tick_();
    for (std::size_t tensor = 2; shape_.recompute && tensor < 6; ++tensor) {
      saved[layer].push_back(activation(change, layer, tensor));
    }
    const Host::Id flowing = host_.allocate(bytes_of(layer, 7), main_stream());
    reduce_gradient(layer);
    while (!saved[layer].empty()) {
      release(saved[layer].back(), change);
      saved[layer].pop_back();
    }
    host_.free(flowing);
  }
  for (const Host::Id tensor : extra) host_.free(tensor);
}

// The gradient of a layer lives until the optimizer has used it; the bucket in which it travels does not.
void Training::reduce_gradient(std::size_t layer) {
  const Host::Id gradient = host_.allocate(bytes_of(layer, 0), main_stream());
  if (streams_.size() > 1) {
    const Host::Id bucket = host_.allocate(bytes_of(layer, 0) + bytes_of(layer, 8), streams_[1]);
    host_.use(gradient, streams_[1]);
    host_.free(bucket);
  }
  gradients_.push_back(gradient);
}

void Training::release(Host::Id tensor, const StepChange& change) {
  if (change.late_frees) {
    late_.push_back(tensor);
  } else if (change.sync_frees) {
    host_.free_sync(tensor);
  } else {
    host_.free(tensor);
  }
}

void Training::evaluate() {
  must(cudaSetDevice(device_), "cudaSetDevice");
  std::vector<std::vector<Host::Id>> saved;
  forward({.size_factor = 0.7}, shape_.layers, saved);
  for (const auto& layer : saved) {
    for (const Host::Id tensor : layer) host_.free(tensor);
  }
}

}  // namespace stalloc::e2e
