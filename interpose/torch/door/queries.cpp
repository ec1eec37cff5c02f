// SPDX-License-Identifier: Apache-2.0
// PyTorch's queries to its allocator, answered for both halves.
#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>

#include "interpose/torch/door/allocator.h"

namespace stalloc::torch::door {

DeviceStats DoorAllocator::getDeviceStats(c10::DeviceIndex device) {
  DeviceStats stats = native_.getDeviceStats(device);
  DeviceState& state = state_of(device);
  const std::lock_guard lock(state.mutex);
  state.statistics.update_held(library_.held(device));
  state.statistics.merge_into(&stats);
  return stats;
}

void DoorAllocator::resetAccumulatedStats(c10::DeviceIndex device) {
  native_.resetAccumulatedStats(device);
  DeviceState& state = state_of(device);
  const std::lock_guard lock(state.mutex);
  state.statistics.reset_accumulated();
}

void DoorAllocator::resetPeakStats(c10::DeviceIndex device) {
  native_.resetPeakStats(device);
  DeviceState& state = state_of(device);
  const std::lock_guard lock(state.mutex);
  state.statistics.update_held(library_.held(device));
  state.statistics.reset_peaks();
}

// A request can have all that is free, wherever it lies.
void DoorAllocator::cacheInfo(c10::DeviceIndex device, std::size_t* largest) {
  native_.cacheInfo(device, largest);
  stalloc_door_memory memory{};
  if (library_.memory_info(device, &memory) != 0) {
    *largest = std::max<std::size_t>(*largest, memory.free + memory.device_free);
  }
}

void* DoorAllocator::getBaseAllocation(void* address, std::size_t* bytes) {
  if (const int device = library_.device_of(address); device >= 0) {
    DeviceState& state = state_of(device);
    const std::lock_guard lock(state.mutex);
    if (const Block* block = state.blocks.find(address)) {
      if (bytes != nullptr) *bytes = block->bytes();
      return address;
    }
  }
  return native_.getBaseAllocation(address, bytes);
}

void DoorAllocator::empty_cache(MempoolId_t pool) {
  if (pool == MempoolId_t{0, 0}) {
    for (int device = 0; device < devices_.load(); ++device) {
      if (state_of(device).postponed_count.load(std::memory_order_relaxed) != 0) retry_postponed(device);
      library_.trim(device, /*wait=*/1);
    }
  }
  empty_native_cache(pool);
  for (int device = 0; device < devices_.load(); ++device) update_native_statistics(device);
}

// `device` may touch the memory of `peer`: of PyTorch's own allocator, of the heaps (as CUDA's function is hooked), and
// what other processes shared.
void DoorAllocator::enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex peer) {
  native_.enablePeerAccess(device, peer);
  library_.grant_imports(peer, device);
}

// Kernels of a device that is no peer cannot read mapped memory, so such copies must name both devices.
cudaError_t DoorAllocator::memcpyAsync(void* to, int to_device, const void* from, int from_device, std::size_t bytes,
                                       cudaStream_t stream, bool peers) {
  const bool apart = !peers && to_device != from_device;
  if (apart && (library_.device_of(to) >= 0 || library_.device_of(from) >= 0)) {
    return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
  }
  return native_.memcpyAsync(to, to_device, from, from_device, bytes, stream, peers);
}

Context DoorAllocator::context_of(const void* address) {
  if (const int device = library_.device_of(address); device >= 0) {
    DeviceState& state = state_of(device);
    const std::lock_guard lock(state.mutex);
    const Block* block = state.blocks.find(address);
    if (block != nullptr) return block->extras == nullptr ? nullptr : block->extras->context;
  }
  return native_context_of(address);
}

// The native allocator's history keeps such words. Of stalloc's blocks they are not kept.
void DoorAllocator::annotate(const void* address, const std::string& metadata) {
  if (library_.device_of(address) < 0) annotate_native(address, metadata);
}

void DoorAllocator::configure_history(HistorySettings settings) { history_.configure(std::move(settings)); }

void DoorAllocator::attachAllocatorTraceTracker(native::AllocatorTraceTracker tracker) {
  history_.add_tracker(tracker);
  native_.attachAllocatorTraceTracker(std::move(tracker));
}

}  // namespace stalloc::torch::door
