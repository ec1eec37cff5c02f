// SPDX-License-Identifier: Apache-2.0
// Whether PyTorch caches memory. While it does not, each request is a cudaMalloc of its own, and the door serves none.
#pragma once

#include <c10/core/Allocator.h>

#include <atomic>
#include <mutex>

#include "interpose/torch/door/versions.h"

namespace stalloc::torch::door {

// Caching is switched on and off by the program (`enable`), and off for good by PYTORCH_NO_CUDA_MEMORY_CACHING. The
// native allocator looks at that variable once, when it is first asked for memory or for its deleter, and in new
// versions when it is asked whether caching is enabled. So nothing is asked here before the program asks. Thread-safe.
class Caching {
 public:
  explicit Caching(native::CUDAAllocator& native) : native_(native) {}

  // Lock-free while caching is on, but for the first call.
  [[nodiscard]] bool is_on() const { return on_.load(std::memory_order_acquire) || initialize_and_get(); }
  // The deleter of what the native allocator caches, whether caching is on now or not.
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
  // The deleter depends on whether caching is enabled, unless it is off for good.
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
  mutable std::atomic<c10::DeleterFnPtr> deleter_{nullptr};  // null: not learned yet
  mutable bool off_for_good_ = false;
  mutable std::mutex mutex_;
};

}  // namespace stalloc::torch::door
