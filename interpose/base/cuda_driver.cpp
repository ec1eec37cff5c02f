// SPDX-License-Identifier: Apache-2.0
#include "interpose/base/cuda_driver.h"

#include <atomic>

#include "interpose/base/loader.h"

namespace stalloc::cuda_driver {
namespace {

void* library() noexcept {
  static std::atomic<void*> handle{nullptr};
  void* found = handle.load(std::memory_order_acquire);
  if (found == nullptr) {
    found = loader::open_loaded("libcuda.so.1");
    if (found != nullptr) handle.store(found, std::memory_order_release);
  }
  return found;
}

}  // namespace

void* symbol(const char* name) noexcept {
  void* driver = library();
  return driver == nullptr ? nullptr : loader::real_dlsym(driver, name);
}

}  // namespace stalloc::cuda_driver
