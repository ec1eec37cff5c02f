// The heaps of this process, one a device, each made at its device's first allocation.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "interpose/serve/driver_real.h"
#include "interpose/serve/heap.h"
#include "plan/plan.h"

namespace stalloc {

// Thread-safe; nothing but the constructor throws.
class Heaps {
 public:
  // Devices without a plan get a heap only when `options.dynamic` is set.
  Heaps(plan::Plan plan, const serve::RealDriver& driver, const serve::HeapOptions& options);

  // The heap of `context`, made if that is its device's primary context; null: the request belongs to the original
  // allocator. Pre: `context` is the thread's current one.
  serve::Heap* of_current(CUcontext context) noexcept;
  // The heap of `context` if there is one already. Lock-free.
  serve::Heap* known(CUcontext context) noexcept {
    const int used = used_devices_.load(std::memory_order_acquire);
    for (int ordinal = 0; ordinal < used; ++ordinal) {
      Device& device = devices_[static_cast<std::size_t>(ordinal)];
      if (device.context.load(std::memory_order_acquire) == context) return device.heap.load(std::memory_order_acquire);
    }
    return nullptr;
  }
  // The heap whose arena holds the address; null: not ours. Lock-free.
  serve::Heap* owning(CUdeviceptr address) noexcept;

  // `pool` as a heap knows it: null for the device's own pool. False when requests from it are not ours to serve:
  // it belongs to another device, may be exported, or is not of device memory.
  // Pre: `heap` is one of these.
  bool resolve_pool(const serve::Heap& heap, CUmemoryPool* pool) noexcept {
    return *pool == nullptr || resolve_named_pool(heap, pool);
  }
  void pool_created(CUmemoryPool pool, const CUmemPoolProps& properties) noexcept;
  void pool_destroyed(CUmemoryPool pool) noexcept;
  // What all heaps serve in the name of `pool`; nothing when none does.
  std::optional<serve::PoolUse> pool_use(CUmemoryPool pool) noexcept;
  void reset_pool_high(CUmemoryPool pool, bool used, bool reserved) noexcept;
  // Gives idle memory back to the driver, down to `keep` bytes where that is possible.
  void trim_pool(CUmemoryPool pool, std::uint64_t keep) noexcept;

  // Kernels on `peer` may touch the memory of `device`, also that of heaps yet to be made.
  void grant_access(int device, int peer) noexcept;
  void grant_pool_access(CUmemoryPool pool, int peer) noexcept;

  void stream_destroyed(CUstream stream) noexcept;
  void note_original_freed(CUdeviceptr address) noexcept;
  // The context and all memory in it is about to go.
  void context_destroyed(CUcontext context) noexcept;
  void device_reset(int device) noexcept;

  // Figures so far; false when nothing is served on that device.
  bool statistics(int device, serve::Statistics* figures) noexcept;
  // One line a device, at log level info; `always`: whatever the level.
  void log_figures(bool always) noexcept;

 private:
  static constexpr int kDevices = 64;

  struct Device {
    std::atomic<serve::Heap*> heap{nullptr};  // owned; destroyed only with its context
    std::atomic<CUcontext> context{nullptr};
    CUmemoryPool own_pool = nullptr;
    std::bitset<kDevices> peers;
    bool tried = false;  // one attempt a process: what did not fit is not tried again
  };

  bool resolve_named_pool(const serve::Heap& heap, CUmemoryPool* pool) noexcept;
  serve::Heap* make_heap(CUcontext context) noexcept;
  std::unique_ptr<serve::Heap> create(int ordinal, CUcontext context) noexcept;
  template <class Action>
  void each_heap(Action action) noexcept;

  const plan::Plan plan_;
  serve::RealDriver driver_;
  const serve::HeapOptions options_;
  std::mutex mutex_;  // guards making and destroying heaps, peers and pools
  // One more than the highest ordinal with a heap: how far a search must look. With what `known` asks of the first
  // device in one cache line.
  alignas(64) std::atomic<int> used_devices_{0};
  std::array<Device, kDevices> devices_;
  std::unordered_map<CUmemoryPool, int> created_pools_;  // the device they are of, -1: not ours to serve
};

}  // namespace stalloc
