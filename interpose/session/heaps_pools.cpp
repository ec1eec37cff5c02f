// SPDX-License-Identifier: Apache-2.0
// What the heaps do for memory pools. Which pools may be served: session/pools.h.
#include <algorithm>
#include <exception>

#include "interpose/session/heaps.h"

namespace stalloc {

// Finds the device's default pool, the devices that may access its memory, and the current pool.
void Heaps::read_pools(int ordinal) noexcept {
  Device& device = devices_[static_cast<std::size_t>(ordinal)];
  const CUmemoryPool pool = cuda_.default_pool(ordinal);
  if (pool == nullptr) return;
  pools_.add_default(pool, ordinal);
  device.default_pool.store(pool, std::memory_order_release);
  const int devices = std::min(cuda_.device_count(), kDevices);
  for (int peer = 0; peer < devices; ++peer) {
    if (peer != ordinal && cuda_.has_access(pool, peer)) device.peers[static_cast<std::size_t>(peer)] = true;
  }
  current_pool_changed(ordinal);
}

// Applies the release thresholds that were set for the device's pools before the heap was created.
void Heaps::apply_thresholds(serve::Heap& heap) noexcept {
  const CUmemoryPool own = device_of(heap).default_pool.load(std::memory_order_acquire);
  heap.set_release_threshold(nullptr, cuda_.release_threshold(own));
  const std::lock_guard lock(thresholds_mutex_);
  for (const auto& [pool, bytes] : release_thresholds_) {
    CUmemoryPool resolved = pool;
    if (resolve_counted_pool(heap, &resolved)) heap.set_release_threshold(resolved, bytes);
  }
}

bool Heaps::resolve_pool(const serve::Heap& heap, CUmemoryPool* pool) noexcept {
  if (pools_.device_of(*pool) != heap.device()) return false;
  if (*pool == device_of(heap).default_pool.load(std::memory_order_acquire)) *pool = nullptr;
  return true;
}

bool Heaps::resolve_counted_pool(const serve::Heap& heap, CUmemoryPool* pool) noexcept {
  if (pools_.counting_device(*pool) != heap.device()) return false;
  if (*pool == device_of(heap).default_pool.load(std::memory_order_acquire)) *pool = nullptr;
  return true;
}

bool Heaps::resolve_redirected_pool(const serve::Heap& heap, CUmemoryPool* pool) noexcept {
  *pool = device_of(heap).redirected_pool.load(std::memory_order_acquire);
  return *pool == nullptr || resolve_pool(heap, pool);
}

CUmemoryPool Heaps::driver_pool(const serve::Heap& heap, CUmemoryPool pool) noexcept {
  return pool != nullptr ? pool : device_of(heap).default_pool.load(std::memory_order_acquire);
}

// Asks the driver which pool is current, since it resets the current pool when that is destroyed.
void Heaps::current_pool_changed(int device) noexcept {
  if (device < 0 || device >= kDevices) return;
  const std::lock_guard lock(redirection_mutex_);
  const CUmemoryPool current = cuda_.current_pool(device);
  const bool redirected = current != cuda_.default_pool(device) || pools_.find(current) == Pools::kNone;
  devices_[static_cast<std::size_t>(device)].redirected_pool.store(redirected ? current : nullptr);
  redirected_.store(std::any_of(devices_.begin(), devices_.end(),
                                [](const Device& each) { return each.redirected_pool.load() != nullptr; }),
                    std::memory_order_release);
}

void Heaps::redirection_ended(CUmemoryPool pool) noexcept {
  for (int device = 0; device < kDevices; ++device) {
    if (devices_[static_cast<std::size_t>(device)].redirected_pool.load() == pool) current_pool_changed(device);
  }
}

void Heaps::pool_created(CUmemoryPool pool, const CUmemPoolProps& properties) noexcept {
  const std::lock_guard lock(lifetimes_mutex_);
  forget_figures(pool);  // those of an earlier pool with the same handle
  pools_.add_created(pool, properties);
}

// The handle may belong to a new pool by now. Then `pool_created` has already forgotten the old pool's figures.
void Heaps::pool_ended(CUmemoryPool pool, bool destroyed) noexcept {
  const std::lock_guard lock(lifetimes_mutex_);
  if (pools_.end_destroy(pool, destroyed)) forget_figures(pool);
}

void Heaps::forget_figures(CUmemoryPool pool) noexcept {
  each_heap([pool](int, serve::Heap& heap) { heap.pool_destroyed(pool); });
  const std::lock_guard lock(thresholds_mutex_);
  release_thresholds_.erase(pool);
}

void Heaps::note_unplanned(serve::Heap* fallback, CUdeviceptr address, std::size_t bytes) noexcept {
  const CUmemoryPool pool = cuda_.pool_of(address);
  bool noted = false;
  each_heap([&](int, serve::Heap& heap) {
    CUmemoryPool resolved = pool;
    if (noted || !resolve_counted_pool(heap, &resolved)) return;
    heap.note_unplanned(address, bytes, resolved);
    noted = true;
  });
  if (!noted && fallback != nullptr) fallback->note_unplanned_sync(address, bytes);
}

std::optional<serve::PoolUse> Heaps::pool_use(CUmemoryPool pool) noexcept {
  std::optional<serve::PoolUse> sum;
  each_heap([&](int, serve::Heap& heap) {
    CUmemoryPool resolved = pool;
    if (!resolve_counted_pool(heap, &resolved)) return;
    if (const serve::PoolUse use = heap.pool_use(resolved); use.known) sum = use;
  });
  return sum;
}

void Heaps::reset_pool_high(CUmemoryPool pool, bool used, bool reserved) noexcept {
  each_heap([&](int, serve::Heap& heap) {
    CUmemoryPool resolved = pool;
    if (resolve_counted_pool(heap, &resolved)) heap.reset_pool_high(resolved, used, reserved);
  });
}

void Heaps::trim_pool(CUmemoryPool pool, std::uint64_t keep) noexcept {
  each_heap([&](int, serve::Heap& heap) {
    CUmemoryPool resolved = pool;
    if (resolve_counted_pool(heap, &resolved)) heap.trim(keep);
  });
}

CUresult Heaps::pool_access_granted(CUmemoryPool pool, const CUmemLocation& location) noexcept {
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) return grant_access(find_device_of(pool), location.id);
  refuse_pool(pool);
  return CUDA_SUCCESS;
}

void Heaps::refuse_pool(CUmemoryPool pool) noexcept {
  const int device = find_device_of(pool);
  if (device == Pools::kNone) return;
  pools_.refuse(pool);
  current_pool_changed(device);
}

// Returns the device whose heap counts `pool`, or kNone. Recognizes the default pools of devices that have no heap yet.
int Heaps::find_device_of(CUmemoryPool pool) noexcept {
  const int devices = pools_.find(pool) ? 0 : std::min(cuda_.device_count(), kDevices);
  for (int ordinal = 0; ordinal < devices; ++ordinal) {
    if (pool == cuda_.default_pool(ordinal)) pools_.add_default(pool, ordinal);
  }
  return pools_.counting_device(pool);
}

void Heaps::set_release_threshold(CUmemoryPool pool, std::uint64_t bytes) noexcept {
  {
    const std::lock_guard lock(thresholds_mutex_);
    try {
      release_thresholds_[pool] = bytes;
    } catch (const std::exception&) {
      // A heap that is created later releases more memory than it has to.
    }
  }
  each_heap([&](int, serve::Heap& heap) {
    CUmemoryPool resolved = pool;
    if (resolve_counted_pool(heap, &resolved)) heap.set_release_threshold(resolved, bytes);
  });
}

}  // namespace stalloc
