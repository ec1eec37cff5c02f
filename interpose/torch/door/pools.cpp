// SPDX-License-Identifier: Apache-2.0
// Memory pools, and captures, which allocate from private pools. The native allocator serves their requests. The door
// only has to know which requests these are.
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
