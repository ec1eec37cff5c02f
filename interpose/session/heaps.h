// The heaps of this process, one a device that the plan covers, each made at its device's first allocation.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <bitset>
#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "interpose/serve/driver_real.h"
#include "interpose/serve/heap.h"
#include "plan/plan.h"

namespace stalloc {

// Thread-safe; nothing throws.
class Heaps {
 public:
  Heaps(plan::Plan plan, const serve::DriverFunctions& functions);

  // The heap of the thread's context, made if the plan covers its device and that is its primary context; null: the
  // request belongs to the original allocator.
  serve::Heap* of_current_context() noexcept;
  // The heap whose arena holds the address; null: not ours. Lock-free.
  serve::Heap* owning(CUdeviceptr address) noexcept;

  // `pool` as a heap knows it: null for the device's own pool. False when requests from it are not ours to serve:
  // it belongs to another device, may be exported, or is not of device memory.
  bool resolve_pool(const serve::Heap& heap, CUmemoryPool* pool) noexcept;
  void pool_created(CUmemoryPool pool, const CUmemPoolProps& properties) noexcept;
  void pool_destroyed(CUmemoryPool pool) noexcept;
  // What all heaps serve in the name of `pool`; nothing when none does.
  std::optional<serve::PoolUse> pool_use(CUmemoryPool pool) noexcept;
  void reset_pool_high(CUmemoryPool pool, bool used, bool reserved) noexcept;

  // Kernels on `peer` may touch the memory of `device`, also that of heaps yet to be made.
  void grant_access(int device, int peer) noexcept;
  void grant_pool_access(CUmemoryPool pool, int peer) noexcept;

  void stream_destroyed(CUstream stream) noexcept;
  void note_original_freed(CUdeviceptr address) noexcept;
  // The context and all memory in it is about to go.
  void context_destroyed(CUcontext context) noexcept;
  void device_reset(int device) noexcept;

  void log_figures() noexcept;

 private:
  static constexpr int kDevices = 64;

  struct Device {
    std::atomic<serve::Heap*> heap{nullptr};  // owned; destroyed only with its context
    std::atomic<CUcontext> context{nullptr};
    CUmemoryPool own_pool = nullptr;
    std::bitset<kDevices> peers;
    bool tried = false;  // one attempt a process: a plan that did not fit is dropped
  };

  serve::Heap* make_heap(CUcontext context) noexcept;
  template <class Action>
  void each_heap(Action action) noexcept;

  plan::Plan plan_;
  serve::RealDriver driver_;
  std::mutex mutex_;  // guards making and destroying heaps, peers and pools
  std::array<Device, kDevices> devices_;
  std::unordered_map<CUmemoryPool, int> created_pools_;  // the device they are of, -1: not ours to serve
};

}  // namespace stalloc
