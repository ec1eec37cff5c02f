// SPDX-License-Identifier: Apache-2.0
// Memory pools, and captures, which allocate from private pools. The native allocator serves their requests. The door
// has to know which requests these are, and gives the native allocator others where it needs them.
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <cuda_runtime_api.h>

#include <algorithm>

#include "interpose/torch/door/allocator.h"

namespace stalloc::torch::door {

void DoorAllocator::use_door_deleter(c10::DataPtr& pointer) {
  (void)pointer.compare_exchange_deleter(caching_.deleter(), &release);
}

bool DoorAllocator::belongs_to_pool(DeviceState& state, cudaStream_t stream) {
  const std::lock_guard lock(state.rare_mutex);
  return std::any_of(state.pools.begin(), state.pools.end(), [&](const Pool& pool) { return pool.takes(stream); });
}

// A block of a pool that other streams used (`recordStream`) goes back to its pool when the native allocator finds that
// they have finished with it. It looks only when it gets a request while no pool takes requests. All such requests are
// the door's, so the pool would grow with every block until there is no memory left. So while blocks wait, the native
// allocator gets the small requests, which need only few segments. Returns null if the heap must serve the request.
void* DoorAllocator::serve_natively_for_events(DeviceState& state, const Request& request) {
  const bool is_small = Statistics::pool_of(Block::rounded(request.bytes)) == Statistics::kSmall;
  if (!is_small || state.active_pools.load(std::memory_order_relaxed) != 0) return nullptr;
  if (has_room_for_native(request.device, request.bytes)) {
    // Another thread's capture in global mode would be broken by the questions about events.
    const c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
    try {
      return allocate_natively(request);
    } catch (const c10::OutOfMemoryError&) {
      // The heap may still have memory.
    }
  }
  state.native_waits.store(false, std::memory_order_relaxed);  // until the native allocator is used again
  return nullptr;
}

void DoorAllocator::beginAllocateToPool(c10::DeviceIndex device, MempoolId_t pool,
                                        std::function<bool(cudaStream_t)> filter) {
  native_.beginAllocateToPool(device, pool, filter);
  DeviceState& state = state_of(device);
  const std::lock_guard lock(state.rare_mutex);
  state.pools.push_back({pool, std::move(filter)});
  state.active_pools.store(state.pools.size());
}

void DoorAllocator::endAllocateToPool(c10::DeviceIndex device, MempoolId_t pool) {
  native_.endAllocateToPool(device, pool);
  DeviceState& state = state_of(device);
  const std::lock_guard lock(state.rare_mutex);
  const auto ended =
      std::find_if(state.pools.begin(), state.pools.end(), [&](const Pool& each) { return each.id == pool; });
  if (ended != state.pools.end()) state.pools.erase(ended);
  state.active_pools.store(state.pools.size());
}

void DoorAllocator::releasePool(c10::DeviceIndex device, MempoolId_t pool) {
  native_.releasePool(device, pool);
  update_native_statistics(device);
}

native::CheckpointDelta DoorAllocator::setCheckpointPoolState(c10::DeviceIndex device,
                                                              std::shared_ptr<native::AllocatorState> state) {
  native::CheckpointDelta delta = native_.setCheckpointPoolState(device, std::move(state));
  for (c10::DataPtr& pointer : delta.dataptrs_allocd) use_door_deleter(pointer);
  update_native_statistics(device);
  return delta;
}

}  // namespace stalloc::torch::door
