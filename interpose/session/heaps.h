// SPDX-License-Identifier: Apache-2.0
// The heaps of this process, one for each device, each created at its device's first allocation.
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

#include "interpose/serve/driver/driver_real.h"
#include "interpose/serve/heap/heap.h"
#include "interpose/session/cuda.h"
#include "interpose/session/pools.h"
#include "interpose/session/statistics_page.h"
#include "interpose/session/stream_clock_cache.h"
#include "interpose/session/unserved_contexts.h"
#include "plan/plan.h"

namespace stalloc {

// Thread-safe; nothing but the constructor throws. If host memory is exhausted, a request is not served or a fact is
// not noted. Functions that are not marked as lock-free may take a lock of this class or of a heap. Locks of this class
// are taken before a heap's lock, never after it. Any context may be current unless a precondition says otherwise.
class Heaps {
 public:
  // Devices with this number and above are not served: the statistics page has no place for them.
  static constexpr int kDevices = static_cast<int>(StatisticsPage::kDevices);

  // Devices without a plan get a heap only if `options.dynamic` is set. The heaps publish their figures in `page`,
  // unless it is null. `cuda` and `page` must live as long as this object; `driver` is copied. Throws std::bad_alloc.
  Heaps(plan::Plan plan, const Cuda& cuda, const serve::RealDriver& driver, const serve::HeapOptions& options,
        StatisticsPage* page = nullptr);
  // Destroys every heap. Not to be used at the end of a process, when the driver may be gone. Pre: no other thread uses
  // the object or its heaps.
  ~Heaps();
  Heaps(const Heaps&) = delete;
  Heaps& operator=(const Heaps&) = delete;

  // The heap of `context`, created if this is its device's primary context. Null: no heap serves it, and the original
  // allocator must serve the request. Creating a heap takes a lock, calls the driver and may map a plan's memory; it is
  // tried once for each device. Pre: `context` is the thread's current context.
  serve::Heap* find_or_create(CUcontext context) noexcept;
  // True if a plan did not fit its device and the options say that requests must then fail. Lock-free.
  [[nodiscard]] bool refuses() const noexcept { return refuses_.load(std::memory_order_relaxed); }
  // The heap of `context`, if there is one already; else null. Creates none. Lock-free.
  serve::Heap* find(CUcontext context) noexcept {
    const int used = used_devices_.load(std::memory_order_acquire);
    for (int ordinal = 0; ordinal < used; ++ordinal) {
      Device& device = devices_[static_cast<std::size_t>(ordinal)];
      if (device.context.load(std::memory_order_acquire) == context) return device.heap.load(std::memory_order_acquire);
    }
    return nullptr;
  }
  // The heap of a device, if there is one already; else null. Lock-free.
  serve::Heap* of_device(int device) noexcept {
    if (device < 0 || device >= used_devices_.load(std::memory_order_acquire)) return nullptr;
    return devices_[static_cast<std::size_t>(device)].heap.load(std::memory_order_acquire);
  }
  // Limits the device's heap, also one that is created later, to `bytes` (Heap::set_limit).
  void set_limit(int device, std::uint64_t bytes) noexcept;
  [[nodiscard]] serve::Driver& driver() noexcept { return driver_; }
  // The heap in whose address ranges the address is; null: there is none. Lock-free.
  serve::Heap* find_owner(CUdeviceptr address) noexcept;
  // The device in whose heap's address ranges the address is, also if that heap is closed; -1: there is none.
  // Lock-free.
  [[nodiscard]] int find_device(CUdeviceptr address) const noexcept;

  // Replace `*pool` by the pool of a request as the heap knows it, which is null for the device's default pool. False
  // if requests from this pool are not served: it belongs to another device, or pools.h does not allow it.
  // `resolve_pool` gets the pool that the program names; `resolve_current_pool` finds the device's current pool, for
  // requests that name none.
  bool resolve_pool(const serve::Heap& heap, CUmemoryPool* pool) noexcept;
  bool resolve_current_pool(const serve::Heap& heap, CUmemoryPool* pool) noexcept {
    *pool = nullptr;
    return !redirected_.load(std::memory_order_acquire) || resolve_redirected_pool(heap, pool);
  }
  // The same for a query or change of the pool's figures: also true for a pool whose requests were served once but are
  // not served any more.
  bool resolve_counted_pool(const serve::Heap& heap, CUmemoryPool* pool) noexcept;
  // The driver's handle of a pool that is given as a heap knows it.
  CUmemoryPool driver_pool(const serve::Heap& heap, CUmemoryPool pool) noexcept;

  // The program has created a pool.
  void pool_created(CUmemoryPool pool, const CUmemPoolProps& properties) noexcept;
  // The program destroys a pool. `destroy` calls the original function that destroys the pool, and returns whether it
  // succeeded.
  template <class Destroy>
  void pool_destroyed(CUmemoryPool pool, Destroy destroy) noexcept {
    pools_.begin_destroy(pool);
    const bool destroyed = destroy();
    pool_ended(pool, destroyed);
    if (destroyed) redirection_ended(pool);
  }
  // The program has made another pool the device's current one. Asks the driver which pool it is.
  void current_pool_changed(int device) noexcept;
  // CUDA has served stream-ordered memory. It counts for its pool, whichever context and device were current. If no
  // heap counts that pool, `fallback` counts the memory, unless it is null.
  void note_unplanned(serve::Heap* fallback, CUdeviceptr address, std::size_t bytes) noexcept;
  // The figures for memory that a heap serves in the name of `pool`, or served until the pool was refused; nothing if
  // no heap does.
  std::optional<serve::PoolUse> pool_use(CUmemoryPool pool) noexcept;
  // Resets the high-water marks of these figures.
  void reset_pool_high(CUmemoryPool pool, bool used, bool reserved) noexcept;
  // Gives idle memory of the pool's heap back to the driver, down to `keep` bytes if possible. Does not wait.
  void trim_pool(CUmemoryPool pool, std::uint64_t keep) noexcept;

  // Kernels on `peer` may access the memory of `device`, also that of a heap that is created later. Returns the
  // driver's first refusal: the peer then lacks access to some of the memory, and the call may be repeated.
  CUresult grant_access(int device, int peer) noexcept;
  // The program gave a location access to the memory of `pool`. A device gets access to all memory served on the pool's
  // device, for which the same holds; if the location is not a device, the pool is no longer served.
  CUresult pool_access_granted(CUmemoryPool pool, const CUmemLocation& location) noexcept;
  // Requests from `pool` are not served from now on.
  void refuse_pool(CUmemoryPool pool) noexcept;

  // These act like the functions of serve::Heap; the first one on the heap of the current context, if it has one, the
  // second on all heaps.
  void create_events_ahead() noexcept;
  void after_synchronization() noexcept;
  // Gives idle memory of all heaps back for a caller that was refused `bytes` (0: unknown) of `device`, and if there is
  // none, that of this device's plan (Heap::make_room). True if a heap gave any.
  bool make_room(std::uint64_t bytes, int device) noexcept;
  // Idle bytes of the device's plan; 0 without a heap.
  std::uint64_t idle_plan_bytes(int device) noexcept;
  // The program has set the release threshold of a pool. A heap may keep the largest threshold of the pools that it
  // serves, or served before they were refused.
  void set_release_threshold(CUmemoryPool pool, std::uint64_t bytes) noexcept;
  // As Heap::keep_idle_memory, for all heaps, also those that are created later.
  void keep_idle_memory() noexcept;

  // The program has created a stream that synchronizes with the legacy stream, perhaps before there are heaps. True the
  // first time; then call `blocking_streams_exist` if there are heaps. Lock-free.
  static bool note_blocking_stream() noexcept { return !blocking_streams_.exchange(true); }
  // Notes that the program has created a stream, in any context; then call `create_events_ahead`. Streams of green
  // contexts need not be noted, since the events of their frees are not those that were created ahead. Lock-free.
  static void note_stream() noexcept { streams_created_.fetch_add(1, std::memory_order_relaxed); }
  void blocking_streams_exist() noexcept;
  // Call before the original function destroys the stream.
  void stream_destroyed(CUstream stream) noexcept;
  // The clock of the stream that the calling thread means by that key, created at first use. Null if the stream's
  // context has no heap, or too many streams. Valid until the stream is destroyed. Lock-free except for the first call.
  serve::StreamClock* stream_clock(const StreamKey& stream) noexcept {
    const CUcontext context = stream.is_default() ? cuda_.current_context() : nullptr;
    return stream_clocks_.find(stream, context, [&] { return find_stream_clock(stream, context); });
  }
  // The clocks with that id; null: no heap has them.
  serve::StreamClocks* clocks(std::uint64_t id) noexcept;
  // The heap that has noted an allocation of CUDA's own memory at `address`, and the number of that allocation; null if
  // no heap has.
  struct Unplanned {
    serve::Heap* heap = nullptr;
    std::uint64_t number = 0;
  };
  [[nodiscard]] Unplanned find_unplanned(CUdeviceptr address) noexcept;
  // Call these before and after the device's primary context is reset, which destroys all memory in it. The heap is
  // closed, and no other is created for the device.
  void before_primary_reset(int device) noexcept;
  void after_primary_reset(int device) noexcept;
  // Whether the context of a heap is being reset. Requests for it must then be refused: their heap is closed, and
  // drivers to which they were forwarded crashed now and then (tests/conformance/reset_beside.cpp). Lock-free.
  [[nodiscard]] bool is_being_reset(CUcontext context) const noexcept;
  // These act like the functions of serve::Heap, on all heaps. Null: there is no context, and nothing is done.
  void before_context_end(CUcontext context) noexcept;
  void after_context_end(CUcontext context, bool ended) noexcept;
  // The program has destroyed a context, or released a device's primary context. If this ended a heap's context, the
  // heap is closed.
  void context_released(CUcontext context) noexcept;
  void primary_released(int device) noexcept;

  // As Heap::notify_pending_frees_at_exit, for all heaps.
  void notify_pending_frees_at_exit() noexcept;

  // The figures so far; false if the device has no heap.
  bool statistics(int device, serve::Statistics* figures) noexcept;
  // Logs one line for each device, at level info or, with `always`, at any level. Takes no lock if nothing would be
  // logged. `wait`: waits for heaps that other threads are using; otherwise their lines are left out.
  void log_figures(bool always, bool wait) noexcept;

 private:
  struct Device {
    std::atomic<serve::Heap*> heap{nullptr};  // owned
    std::atomic<CUcontext> context{nullptr};
    std::atomic<CUcontext> reset_context{nullptr};       // the former `context`, while it is being reset
    std::atomic<CUmemoryPool> default_pool{nullptr};     // known once there is a heap
    std::atomic<CUmemoryPool> redirected_pool{nullptr};  // the current one, unless that is the default one
    std::bitset<kDevices> peers;
    std::uint64_t limit = ~std::uint64_t{0};  // bytes that the heap may hold
    bool tried = false;                       // a heap was created or refused; there is only one attempt
    // The former `heap`, after its context has ended; owned. Kept, since another thread may still be inside.
    std::atomic<serve::Heap*> closed_heap{nullptr};
  };

  // `context` is that of a default stream, and null for any other. Nothing if the driver refuses to tell the context.
  std::optional<serve::StreamClock*> find_stream_clock(const StreamKey& stream, CUcontext context) noexcept;

  serve::Heap* create_if_primary(CUcontext context) noexcept;
  serve::Heap* create_heap(int ordinal, CUcontext context) noexcept;
  // Null: the plan, or without one the device, cannot be served; a log line says why.
  std::unique_ptr<serve::Heap> try_heap(int ordinal, CUcontext context, const plan::DevicePlan* plan) noexcept;
  std::unique_ptr<serve::Heap> create_served_heap(int ordinal, CUcontext context) noexcept;
  static bool open_to_peers(const Device& device, serve::Heap& heap) noexcept;
  serve::Heap* detach_heap(Device& device) noexcept;
  static void log_figures_of(int ordinal, const serve::Statistics& figures, bool always) noexcept;
  void publish_figures(int ordinal, serve::Heap* heap) noexcept;
  // Calls action(device, heap) for each heap that is not closed.
  template <class Action>
  void each_heap(Action action) noexcept {
    const int used = used_devices_.load(std::memory_order_acquire);
    for (int ordinal = 0; ordinal < used; ++ordinal) {
      serve::Heap* heap = devices_[static_cast<std::size_t>(ordinal)].heap.load(std::memory_order_acquire);
      if (heap != nullptr) action(ordinal, *heap);
    }
  }

  // heaps_pools.cpp
  Device& device_of(const serve::Heap& heap) noexcept { return devices_[static_cast<std::size_t>(heap.device())]; }
  bool resolve_redirected_pool(const serve::Heap& heap, CUmemoryPool* pool) noexcept;
  int find_device_of(CUmemoryPool pool) noexcept;
  void pool_ended(CUmemoryPool pool, bool destroyed) noexcept;
  void forget_figures(CUmemoryPool pool) noexcept;
  void redirection_ended(CUmemoryPool pool) noexcept;
  void read_pools(int ordinal) noexcept;
  void apply_thresholds(serve::Heap& heap) noexcept;

  const plan::Plan plan_;
  const Cuda& cuda_;
  serve::RealDriver driver_;
  const serve::HeapOptions options_;
  StatisticsPage* const page_;  // null: figures are not shown
  std::mutex mutex_;            // guards making and closing heaps, peers and keeps_idle_
  // Whether the program has made a stream that synchronizes with the legacy stream.
  static inline std::atomic<bool> blocking_streams_{false};
  static inline std::atomic<std::size_t> streams_created_{0};
  bool keeps_idle_ = false;
  std::atomic<bool> refuses_{false};
  std::mutex redirection_mutex_;  // guards changes of redirected pools
  // One more than the highest ordinal with a heap, the end of searches. It is in one cache line with the members of the
  // first device that `known` reads.
  alignas(64) std::atomic<int> used_devices_{0};
  std::atomic<bool> redirected_{false};  // some device's current pool is not its default one
  std::array<Device, kDevices> devices_;
  StreamClockCache stream_clocks_;
  Pools pools_;
  std::mutex lifetimes_mutex_;  // guards what becomes known of new pools and forgotten of old ones
  UnservedContexts unserved_;
  std::mutex thresholds_mutex_;
  std::unordered_map<CUmemoryPool, std::uint64_t> release_thresholds_;  // as the program set them
};

}  // namespace stalloc
