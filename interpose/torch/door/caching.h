// SPDX-License-Identifier: Apache-2.0
// Whether PyTorch caches memory. While it does not, the native allocator serves each request by a cudaMalloc of its
// own, and the door serves none.
#pragma once

#include <c10/core/Allocator.h>

#include <atomic>
#include <mutex>

#include "interpose/torch/door/versions.h"

namespace stalloc::torch::door {

// The program can switch caching on and off (`enable`); PYTORCH_NO_CUDA_MEMORY_CACHING switches it off for good. The
// native allocator reads that variable once: at the first request or query of its deleter, and in newer versions at the
// first query whether caching is enabled. So the door makes no such query before the program does. Thread-safe.
class Caching {
 public:
  explicit Caching(native::CUDAAllocator& native) : native_(native) {}

  // Lock-free while caching is on, except for the first call.
  [[nodiscard]] bool is_on() const { return on_.load(std::memory_order_acquire) || initialize_and_get(); }
  // The native allocator's deleter for memory that it caches, whether or not caching is on now.
  [[nodiscard]] c10::DeleterFnPtr deleter() const {
    const c10::DeleterFnPtr known = deleter_.load(std::memory_order_acquire);
    if (known != nullptr) return known;
    (void)initialize_and_get();
    return deleter_.load();
  }
  [[nodiscard]] bool is_enabled() const {
    const std::lock_guard lock(mutex_);
    return native_.isEnabled();
  }
  void enable(bool value) {
    const std::lock_guard lock(mutex_);
    native_.enable(value);
    if (deleter_.load() != nullptr) on_.store(value && !off_for_good_);
  }

 private:
  bool initialize_and_get() const {
    const std::lock_guard lock(mutex_);
    if (deleter_.load() == nullptr) initialize();
    return on_.load();
  }
  // The native allocator has different deleters with and without caching, unless caching is off for good.
  void initialize() const {
    const bool enabled = native_.isEnabled();
    native_.enable(false);
    const c10::DeleterFnPtr uncached = native_.raw_deleter();
    native_.enable(true);
    const c10::DeleterFnPtr cached = native_.raw_deleter();
    native_.enable(enabled);
    off_for_good_ = cached == uncached;
    deleter_.store(cached, std::memory_order_release);
    on_.store(enabled && !off_for_good_, std::memory_order_release);
  }

  native::CUDAAllocator& native_;
  mutable std::atomic<bool> on_{false};
  mutable std::atomic<c10::DeleterFnPtr> deleter_{nullptr};  // null: not initialized yet
  mutable bool off_for_good_ = false;
  mutable std::mutex mutex_;
};

}  // namespace stalloc::torch::door
