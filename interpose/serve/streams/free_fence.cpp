// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/streams/free_fence.h"

#include <new>

namespace stalloc::serve {
namespace {

constexpr std::size_t kBlockBytes = 512;  // the driver takes such blocks from one page

}  // namespace

void FreeFence::close(bool context_lives) {
  std::vector<CUdeviceptr> blocks;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    blocks.swap(blocks_);
  }
  if (!context_lives) return;
  for (const CUdeviceptr block : blocks) driver_.free_plain(block);
}

bool FreeFence::prepare() {
  {
    const std::lock_guard lock(mutex_);
    if (closed_ || !blocks_.empty() || in_use_ > 0) return !closed_;
  }
  const ContextScope scope(driver_, context_);
  CUdeviceptr block = 0;
  if (!scope.ok() || driver_.allocate_plain(&block, kBlockBytes) != CUDA_SUCCESS) return false;
  keep(block);
  return true;
}

CUresult FreeFence::wait() {
  const ContextScope scope(driver_, context_);
  if (!scope.ok()) return CUDA_ERROR_INVALID_CONTEXT;
  CUdeviceptr block = 0;
  bool spare = false;
  if (const CUresult result = take(&block, &spare); result != CUDA_SUCCESS) return result;
  // The device is full and there is no spare block any more: this is the most similar function.
  if (block == 0) return driver_.synchronize_context();
  const CUresult result = driver_.free_plain(block);
  const bool has_another =
      result == CUDA_SUCCESS && spare && driver_.allocate_plain(&block, kBlockBytes) == CUDA_SUCCESS;
  if (result != CUDA_SUCCESS || has_another) keep(block);
  if (spare) return_spare();
  return result;
}

// Takes a block that an earlier wait could not free, or else allocates a new one, so that the spare block keeps the
// driver's page allocated. If the device has no memory, takes the spare block, and waits until another thread has
// returned it. `*block` is 0 if there is no spare block any more.
CUresult FreeFence::take(CUdeviceptr* block, bool* spare) {
  {
    const std::lock_guard lock(mutex_);
    if (blocks_.size() > 1) {
      *block = blocks_.back();
      blocks_.pop_back();
      return CUDA_SUCCESS;
    }
  }
  const CUresult result = driver_.allocate_plain(block, kBlockBytes);
  if (result != CUDA_ERROR_OUT_OF_MEMORY) return result;
  std::unique_lock lock(mutex_);
  returned_.wait(lock, [this] { return !blocks_.empty() || in_use_ == 0; });
  *block = 0;
  if (blocks_.empty()) return CUDA_SUCCESS;
  *block = blocks_.back();
  blocks_.pop_back();
  ++in_use_;
  *spare = true;
  return CUDA_SUCCESS;
}

void FreeFence::return_spare() {
  {
    const std::lock_guard lock(mutex_);
    --in_use_;
  }
  returned_.notify_all();
}

void FreeFence::keep(CUdeviceptr block) {
  {
    const std::lock_guard lock(mutex_);
    try {
      if (!closed_) return blocks_.push_back(block);
    } catch (const std::bad_alloc&) {
      return;  // The block is leaked until the context ends.
    }
  }
  driver_.free_plain(block);
}

}  // namespace stalloc::serve
