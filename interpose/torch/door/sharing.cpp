// SPDX-License-Identifier: Apache-2.0
// Tensors that other processes use (torch.multiprocessing): ours by offers of the library's, PyTorch's by its own
// handles.
#include <c10/cuda/CUDAFunctions.h>

#include "interpose/torch/door/allocator.h"

namespace stalloc::torch::door {

native::ShareableHandle DoorAllocator::shareIpcHandle(void* address) {
  const int device = library_.device_of(address);
  if (device < 0) return native_.shareIpcHandle(address);
  Books& own = books(device);
  const std::lock_guard lock(own.mutex);
  Block* block = own.blocks.find(address);
  TORCH_CHECK(block != nullptr, "stalloc: a tensor that is to be shared does not begin at ", address);
  if (block->extras == nullptr) block->extras = std::make_unique<Extras>();
  Offer& offer = block->extras->offer;
  if (offer.made == nullptr) {
    const char* text = nullptr;
    std::size_t bytes = 0;
    std::uint64_t offset = 0;
    const char* why = nullptr;
    const stalloc_door_answer answer = library_.offer(address, device, &offer.made, &text, &bytes, &offset, &why);
    TORCH_CHECK(
        answer == STALLOC_DOOR_DONE, "stalloc cannot share this tensor with another process: ", why,
        ". Allocate what is to be shared in a torch.cuda.MemPool (with torch.cuda.use_mem_pool(pool): ...), which "
        "PyTorch's own allocator serves, or set STALLOC_MODE=off for this process.");
    offer.handle = {static_cast<std::ptrdiff_t>(offset), std::string(text, bytes)};
  }
  return offer.handle;
}

std::shared_ptr<void> DoorAllocator::getIpcDevPtr(std::string handle) {
  std::unique_lock lock(opened_mutex_);
  if (const auto known = opened_.find(handle); known != opened_.end()) {
    if (std::shared_ptr<void> opened = known->second.lock()) return opened;
    opened_.erase(known);
  }
  C10_CUDA_CHECK(cudaFree(nullptr));  // makes the device's own context, and the thread's
  void* base = nullptr;
  const char* why = nullptr;
  const stalloc_door_answer answer =
      library_.open_offer(c10::cuda::current_device(), handle.data(), handle.size(), &base, &why);
  if (answer == STALLOC_DOOR_DECLINED) {
    lock.unlock();
    return native_.getIpcDevPtr(std::move(handle));
  }
  TORCH_CHECK(answer == STALLOC_DOOR_DONE, "stalloc cannot use a tensor that another process shares: ", why);
  std::shared_ptr<void> opened(base, [this, handle](void* at) {
    library_.close_offer(at);
    const std::lock_guard closing(opened_mutex_);
    const auto known = opened_.find(handle);
    if (known != opened_.end() && known->second.expired()) opened_.erase(known);
  });
  opened_[handle] = opened;
  return opened;
}

}  // namespace stalloc::torch::door
