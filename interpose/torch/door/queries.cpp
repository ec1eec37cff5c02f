// SPDX-License-Identifier: Apache-2.0
// PyTorch's queries to its allocator, answered for both allocators, and its observers.
#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>

#include "interpose/torch/door/allocator.h"

namespace stalloc::torch::door {

DeviceStats DoorAllocator::getDeviceStats(c10::DeviceIndex device) {
  if (!has_device(device)) return native_.getDeviceStats(device);  // throws
  DeviceState& state = state_of(device);
  const std::uint64_t reading = state.native_readings.fetch_add(1) + 1;
  DeviceStats stats = native_.getDeviceStats(device);
  const std::lock_guard lock(state.mutex);
  state.statistics.update_held(library_.held(device));
  state.statistics.merge_into(&stats, reading);
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

// The heap can serve a request from all free memory, wherever it lies.
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

Context DoorAllocator::context_of(const void* address) {
  if (const int device = library_.device_of(address); device >= 0) {
    DeviceState& state = state_of(device);
    const std::lock_guard lock(state.mutex);
    const Block* block = state.blocks.find(address);
    if (block != nullptr) return block->extras == nullptr ? nullptr : block->extras->context;
  }
  return native_context_of(address);
}

// The native allocator keeps such annotations in its history. The door keeps none for blocks of the heap.
void DoorAllocator::annotate(const void* address, const std::string& metadata) {
  if (library_.device_of(address) < 0) annotate_native(address, metadata);
}

// The native allocator forgets what it is told of the history, and its trackers, before it is initialized.
void DoorAllocator::configure_history(HistorySettings settings) {
  if (native_.initialized()) history_.configure(std::move(settings));
}

void DoorAllocator::attachAllocatorTraceTracker(native::AllocatorTraceTracker tracker) {
  if (native_.initialized()) history_.add_tracker(tracker);
  native_.attachAllocatorTraceTracker(std::move(tracker));
}

}  // namespace stalloc::torch::door
