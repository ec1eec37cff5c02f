// SPDX-License-Identifier: Apache-2.0
// An allocator for PyTorch that serves eager tensors from stalloc's heaps and leaves everything else (captures, pools,
// checkpoints) to PyTorch's native allocator. Statistics and snapshots show the memory of both as that of one
// allocator.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "interpose/torch/door.h"
#include "interpose/torch/door/blocks.h"
#include "interpose/torch/door/caching.h"
#include "interpose/torch/door/forwarding.h"
#include "interpose/torch/door/history.h"
#include "interpose/torch/door/statistics.h"

namespace stalloc::torch::door {

// Thread-safe. There is one object, which is never destroyed, since tensors may be freed until the process ends.
class DoorAllocator final : public Forwarding {
 public:
  DoorAllocator(native::CUDAAllocator& native, const stalloc_door_library& library)
      : Forwarding(native), library_(library), caching_(native) {}

  // Call this once, before PyTorch can use the object. PyTorch's native allocator may have been initialized already, or
  // be so by another thread meanwhile.
  void open();

  // --- tensors ---
  c10::DataPtr allocate(std::size_t bytes) override;
  // While caching is off, the native allocator has another deleter, which returns memory to CUDA.
  c10::DeleterFnPtr raw_deleter() const override { return caching_.is_on() ? &release : native_.raw_deleter(); }
  void* raw_alloc(std::size_t bytes) override;
  void* raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) override;
  void raw_delete(void* address) override;
  void recordStream(const c10::DataPtr& pointer, c10::cuda::CUDAStream stream) override;

  // --- settings (out_of_memory.cpp) ---
  void init(int devices) override;
  void enable(bool value) override { caching_.enable(value); }
  bool isEnabled() const override { return caching_.is_enabled(); }
  double getMemoryFraction(c10::DeviceIndex device) override;
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override;

  // --- queries and observers (queries.cpp) ---
  void cacheInfo(c10::DeviceIndex device, std::size_t* largest) override;
  void* getBaseAllocation(void* address, std::size_t* bytes) override;
  DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  void attachAllocatorTraceTracker(native::AllocatorTraceTracker tracker) override;
  void attachOutOfMemoryObserver(native::OutOfMemoryObserver observer) override;

  // --- captures and pools, which the native allocator serves (pools.cpp) ---
  void beginAllocateToPool(c10::DeviceIndex device, MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(c10::DeviceIndex device, MempoolId_t pool) override;
  void releasePool(c10::DeviceIndex device, MempoolId_t pool) override;
  native::CheckpointDelta setCheckpointPoolState(c10::DeviceIndex device,
                                                 std::shared_ptr<native::AllocatorState> state) override;

  // --- other devices and processes (sharing.cpp) ---
  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex peer) override;
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, std::size_t bytes,
                          cudaStream_t stream, bool peers) override;
  native::ShareableHandle shareIpcHandle(void* address) override;
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override;

 protected:
  void empty_cache(MempoolId_t pool) override;
  native::SnapshotInfo take_snapshot(MempoolId_t pool, bool traces) override;
  void configure_history(HistorySettings settings) override;
  Context context_of(const void* address) override;
  void annotate(const void* address, const std::string& metadata) override;
  void use_door_deleter(c10::DataPtr& pointer) override;

 private:
  static constexpr std::size_t kDevices = STALLOC_DOOR_DEVICES;
  static constexpr std::size_t kMostRefused = 16;  // postponed frees that a request tries in vain

  struct Request {
    int device = 0;
    std::size_t bytes = 0;
    cudaStream_t stream = nullptr;
    const void* caller = nullptr;  // null: the request belongs to a pool or a capture, which is not recorded in a trace
  };
  // Reported to PyTorch's profiler with each allocation and free. Bytes, of both allocators together.
  struct Totals {
    std::int64_t allocated = 0;
    std::int64_t reserved = 0;
  };
  // A free that a capture forbids, kept until captures are over.
  struct PostponedFree {
    void* address = nullptr;
    cudaStream_t stream = nullptr;
    cudaStream_t current = nullptr;                 // the thread's current stream at the free
    std::vector<stalloc_door_stream> used_streams;  // if recordStream named any: these, `stream` first, and `current`
  };
  struct Pool {
    MempoolId_t id;
    std::function<bool(cudaStream_t)> takes;  // whether a request on a stream belongs to this pool
  };
  // `mutex` and `rare_mutex` are never held together. `limit_mutex` is taken before `mutex`, and the native allocator
  // is not called under it.
  struct alignas(64) DeviceState {
    std::mutex mutex;  // guards blocks, statistics and fraction
    Blocks blocks;
    Statistics statistics;
    double fraction = 1;                            // the part of the device's memory that this process may use
    std::atomic<std::uint64_t> native_readings{0};  // readings of the native allocator's statistics begun so far
    std::atomic<bool> has_native{false};            // the native allocator holds memory of the device
    std::atomic<bool> native_waits{false};          // freed blocks of the native allocator wait for other streams
    std::atomic<std::size_t> active_pools{0};       // the size of `pools`
    std::atomic<std::size_t> postponed_count{0};    // the size of `postponed`
    std::mutex limit_mutex;                         // guards reading the heap's limit and setting it
    std::mutex rare_mutex;                          // guards pools and postponed, which are empty most of the time
    std::vector<Pool> pools;
    std::list<PostponedFree> postponed;
  };

  // The deleter of every tensor, whichever allocator served it, since PyTorch compares deleters.
  static void release(void* address);

  // Throws c10::Error if there is no such device.
  DeviceState& state_of(int device) {
    if (!has_device(device)) [[unlikely]]
      refuse_device(device);
    return states_[static_cast<std::size_t>(device)];
  }
  // Whether there is such a device, and the native allocator is initialized.
  bool has_device(int device) {
    return (device >= 0 && device < devices_.load(std::memory_order_relaxed)) || count_and_find(device);
  }
  bool count_and_find(int device);
  [[noreturn]] static void refuse_device(int device);

  // allocator.cpp
  void set_device_count(int devices);
  void* serve(const Request& request);
  void* serve_after_refusal(stalloc_door_result result, const Request& request, const Context& context);
  bool belongs_to_pool(DeviceState& state, cudaStream_t stream);
  void* serve_natively_for_events(DeviceState& state, const Request& request);
  void register_block(const Request& request, void* address, const Context& context);
  Totals add_block(const Request& request, void* address, const Context& context);
  Block remove_block(int device, void* address, Totals* totals);
  void report_allocation(const Request& request, void* address, const Context& context, Totals totals);
  void report_free(int device, const Block& block, const Context& context, Totals totals);
  bool try_free(void* address);
  bool try_free_on(int device, void* address);
  void free_block(int device, Block& block);
  stalloc_door_result try_free_block(int device, const PostponedFree& block);
  void free_or_postpone(int device, PostponedFree block);
  bool retry_postponed(int device, std::size_t most_refused);
  void* allocate_natively(const Request& request);
  void record_native(int device, const Request& request, const void* address) noexcept;
  template <class Allocate>
  void* allocate_uncached(int device, Allocate allocate);
  void update_native_statistics(int device);
  void update_all_native_statistics();

  // snapshot.cpp
  void append_heap(int device, std::vector<native::SegmentInfo>* segments);

  // out_of_memory.cpp
  stalloc_door_result allocate_from_heap(const Request& request, void** address) const {
    return library_.allocate(request.device, request.bytes, request.stream, request.caller, address);
  }
  bool free_and_retry(const Request& request, void** address);
  bool has_room_for_native(int device, std::size_t bytes);
  void empty_native_caches(std::vector<std::int64_t>* counted);
  void update_native_limit(int device, std::size_t bytes);
  void set_native_limit(int device, std::size_t bytes, std::uint64_t limit);
  void update_heap_limit(int device);
  void limit_to_fraction(int device, double fraction);
  std::optional<std::uint64_t> granted_bytes(int device);
  std::uint64_t native_bytes(int device);           // that the native allocator holds
  std::uint64_t native_idle_bytes(int device);      // the part of them that it has cached
  std::uint64_t idle_in_private_pools(int device);  // bytes that the native allocator holds for them
  std::string extend_error(int device, std::string text);

  const stalloc_door_library& library_;
  Caching caching_;
  std::atomic<int> devices_{0};
  std::array<DeviceState, kDevices> states_;
  History history_;
  // Memory of other processes that tensors of this one use, by IPC handle.
  std::mutex imports_mutex_;
  std::unordered_map<std::string, std::weak_ptr<void>> imports_;
  // Blocks that the native allocator served while a trace was recorded, whose frees must be recorded, too.
  std::mutex recorded_native_mutex_;
  std::unordered_map<const void*, stalloc_door_stream> recorded_native_;
};

}  // namespace stalloc::torch::door
