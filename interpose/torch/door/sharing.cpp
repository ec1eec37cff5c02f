// SPDX-License-Identifier: Apache-2.0
// Tensors that other processes (torch.multiprocessing) or other devices use. Blocks of the heap are shared by the
// library's IPC handles, others by the native allocator's.
#include <c10/cuda/CUDAFunctions.h>

#include "interpose/torch/door/allocator.h"
#include "interpose/torch/door/context.h"

namespace stalloc::torch::door {

native::ShareableHandle DoorAllocator::shareIpcHandle(void* address) {
  const int device = library_.device_of(address);
  if (device < 0) return native_.shareIpcHandle(address);
  DeviceState& state = state_of(device);
  std::unique_lock lock(state.mutex);
  Block* block = state.blocks.find(address);
  if (block == nullptr) {
    lock.unlock();
    return native_.shareIpcHandle(address);  // throws, since no tensor begins there
  }
  if (block->extras == nullptr) block->extras = std::make_unique<Extras>();
  IpcExport& ipc = block->extras->ipc;
  if (ipc.exported == nullptr) {
    const char* ipc_handle = nullptr;
    std::size_t bytes = 0;
    std::uint64_t offset = 0;
    const char* why = nullptr;
    const stalloc_door_result result =
        library_.export_block(address, device, &ipc.exported, &ipc_handle, &bytes, &offset, &why);
    TORCH_CHECK(
        result == STALLOC_DOOR_DONE, "stalloc cannot share this tensor with another process: ", why,
        ". Allocate what is to be shared in a torch.cuda.MemPool (with torch.cuda.use_mem_pool(pool): ...), which "
        "PyTorch's own allocator serves, or set STALLOC_MODE=off for this process.");
    ipc.handle = {static_cast<std::ptrdiff_t>(offset), std::string(ipc_handle, bytes)};
  }
  return ipc.handle;
}

std::shared_ptr<void> DoorAllocator::getIpcDevPtr(std::string handle) {
  std::unique_lock lock(imports_mutex_);
  if (const auto known = imports_.find(handle); known != imports_.end()) {
    if (std::shared_ptr<void> imported = known->second.lock()) return imported;
  }
  std::erase_if(imports_, [](const auto& import) { return import.second.expired(); });
  make_context_current();
  void* base = nullptr;
  const char* why = nullptr;
  const stalloc_door_result result =
      library_.map_import(c10::cuda::current_device(), handle.data(), handle.size(), &base, &why);
  if (result == STALLOC_DOOR_DECLINED) {
    lock.unlock();
    return native_.getIpcDevPtr(std::move(handle));
  }
  TORCH_CHECK(result == STALLOC_DOOR_DONE, "stalloc cannot use a tensor that another process shares: ", why);
  // Where the host has no memory for what follows, this is called with the lock held.
  std::shared_ptr<void> imported(base, [this](void* at) { library_.unmap_import(at); });
  imports_[handle] = imported;
  return imported;
}

// `device` may access all memory of `peer` from now on. The native allocator does this for its own memory by calling
// CUDA; the library hooks that call and does it for the heap. Memory of other processes remains.
void DoorAllocator::enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex peer) {
  native_.enablePeerAccess(device, peer);
  library_.grant_imports(peer, device);
}

// Without peer access, a copy of mapped memory between devices works only if the call names both devices.
cudaError_t DoorAllocator::memcpyAsync(void* to, int to_device, const void* from, int from_device, std::size_t bytes,
                                       cudaStream_t stream, bool peers) {
  const bool apart = !peers && to_device != from_device;
  if (apart && (library_.device_of(to) >= 0 || library_.device_of(from) >= 0)) {
    return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
  }
  return native_.memcpyAsync(to, to_device, from, from_device, bytes, stream, peers);
}

}  // namespace stalloc::torch::door
