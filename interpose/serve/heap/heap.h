// SPDX-License-Identifier: Apache-2.0
// One device's served memory: the plan's slots, the dynamic sub-allocator for what no plan covers, the order between
// streams, the figures. DESIGN: docs/design.md, "Serving".
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "interpose/base/stream_key.h"
#include "interpose/serve/driver/driver.h"
#include "interpose/serve/dynamic/dynamic.h"
#include "interpose/serve/dynamic/heap_options.h"
#include "interpose/serve/heap/figures.h"
#include "interpose/serve/heap/heap_mutex.h"
#include "interpose/serve/heap/live_table.h"
#include "interpose/serve/heap/pending_frees.h"
#include "interpose/serve/heap/published_figures.h"
#include "interpose/serve/planned/planned.h"
#include "interpose/serve/streams/free_fence.h"
#include "interpose/serve/streams/stream_order.h"
#include "plan/plan.h"

namespace stalloc::serve {

// Receives one line for the user, without a newline. Called without any lock held, on the thread of a request; must not
// throw.
using LogFunction = void (*)(const char* text);

// What is live at an address, as the program asked for it.
struct LiveRange {
  CUdeviceptr base = 0;
  std::size_t bytes = 0;        // as requested
  std::uint64_t number = 0;     // no other request that this heap served had it, or will
  bool from_pool = false;       // stream-ordered; false: of cuMemAlloc
  CUmemoryPool pool = nullptr;  // that it is from; null: the device's own
  bool sync_memops = false;     // as `set_sync_memops` left it
};

// Thread-safe throughout; nothing but `create` throws or fails for want of host memory: then a request goes unplanned.
// The calls into the driver that a request needs are made on the requesting thread.
class Heap {
 public:
  // Reserves, creates and maps everything that `plan` names, once; null, or a plan that places nothing: everything is
  // served dynamically.
  // `context`, of `device`, is the one the heap serves; requests made under any other belong to the original allocator.
  // It must be current. Pre: `plan` was read by plan::decode_plan and is of the same device; it is not needed
  // afterwards. On failure everything is given back, and `why` says in one line what did not fit. `driver` must outlive
  // the heap. Never throws.
  static std::unique_ptr<Heap> create(Driver& driver, int device, const plan::DevicePlan* plan, CUcontext context,
                                      const HeapOptions& options, std::string* why, LogFunction log = nullptr) noexcept;
  // Closes it. Not for the end of a process: the driver may be gone by then. Pre: no stream of the context is being
  // captured, and no other thread is inside.
  ~Heap();
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  // Call `close` before the context ends: it waits for the context's work and gives everything back. Other threads may
  // still call: nothing is live any more, and no request is served. The driver may reuse the addresses. False: the
  // driver refused to wait (the device has failed, or a stream is being captured), and all is still mapped. Call
  // `close_after_context` when the context has ended: it gives back what is left. Both are idempotent.
  bool close() noexcept;
  void close_after_context() noexcept;
  // True once either was called: addresses that this heap does not know may belong to the driver.
  [[nodiscard]] bool is_closed() const noexcept { return closed_.load(std::memory_order_acquire); }
  // True when the plan was dropped and the options say that requests then fail. Lock-free.
  [[nodiscard]] bool refuses() const noexcept { return refuses_.load(std::memory_order_relaxed); }

  // Serves `bytes`, ordered on `stream`: at the planned place when the plan foresees the request and the place is free,
  // else dynamically. Or returns nothing: then the caller asks the original allocator and reports the result by
  // `note_unplanned`. That happens for a captured stream, for slots that the plan passes through, for more bytes than
  // the device has, and when memory is exhausted; the last two set `exhausted`, unless it is null. `pool` is the driver
  // pool the request names (null: the device's own, also when the program names that one by its handle). Never waits
  // for the device. Pre: `context` is current.
  std::optional<CUdeviceptr> allocate(std::size_t bytes, StreamKey stream, CUmemoryPool pool,
                                      bool* exhausted = nullptr) noexcept;
  // As cuMemAlloc: the bytes may be used on any stream at once. Served only from bytes on which nothing is pending.
  std::optional<CUdeviceptr> allocate_sync(std::size_t bytes) noexcept;
  // The original allocator served a request of the program. `note_unplanned_sync`: one that names no pool (cuMemAlloc).
  void note_unplanned(CUdeviceptr address, std::size_t bytes, CUmemoryPool pool) noexcept;
  void note_unplanned_sync(CUdeviceptr address, std::size_t bytes) noexcept;

  // True for addresses inside the heap's reservations, whatever is live there. Lock-free.
  [[nodiscard]] bool owns(CUdeviceptr address) const noexcept {
    return planned_.contains(address) || (dynamic_ && dynamic_->contains(address));
  }

  // Gives back what `allocate` served. The bytes are reusable on `stream` at once, on others behind the free.
  // CUDA_ERROR_INVALID_VALUE when no live range starts at `address`, and when the stream is being captured: as CUDA,
  // which lets a graph free only what a graph allocated. The bytes then stay live. What is freed on a stream of another
  // context is reusable when an event behind it has completed. Never waits for the device. `context_is_current`: the
  // caller knows that `context` is the thread's current one.
  CUresult free_async(CUdeviceptr address, StreamKey stream, bool context_is_current = false) noexcept;
  // As `free_async`, where the thread works on another stream, `user`, which may have been given work on the bytes that
  // nothing else tells of: they are reusable on `stream` at once, and on others behind the work of both.
  // CUDA_ERROR_NOT_SUPPORTED when the heap cannot tell the two apart, since one is of another context or there are too
  // many; the bytes then stay live. Pre: `context` is current.
  CUresult free_with_user(CUdeviceptr address, StreamKey stream, StreamKey user) noexcept;
  // Gives it back once the work of `stream` so far is complete: no other stream waits for that stream because of these
  // bytes. Returns as `free_async`, or what the driver says of an event there; the bytes then stay live. `owner`: the
  // stream that it was served for, which is offered the bytes first then, and which HeapOptions::on_free_complete is
  // told.
  CUresult free_when_complete(CUdeviceptr address, StreamKey stream, StreamKey owner) noexcept;
  // Waits on the host until what was freed by `free_when_complete`, and on streams of other contexts, until now is
  // over, or until the device has failed. Returns whether there was any. Other threads can use the heap meanwhile. Pre:
  // no stream is being captured.
  bool wait_for_pending_frees() noexcept;
  // Any context is about to end, and then it has, or not (`ended`): CUDA lets nobody touch its events any more, and
  // none of its work is left. Where its work may go on, leave the second call out: what waits for one of its events
  // then stays unused.
  void before_context_end(CUcontext context) noexcept;
  void after_context_end(CUcontext context, bool ended) noexcept;
  // Tells HeapOptions::on_free_complete of all of these that are not over yet, as the program ends. Without waiting: of
  // none when another thread uses the heap just now.
  void notify_pending_frees_at_exit() noexcept;
  // As cuMemFree: waits for all work of the context, and the bytes are then reusable everywhere; what was allocated
  // from a pool is not waited for, since CUDA relies on the program that nothing uses it. Returns what CUDA returns:
  // when it refuses (another thread captures in global mode, the device has failed) the bytes stay live.
  CUresult free_sync(CUdeviceptr address) noexcept;
  // The number of a noted request of CUDA's own memory, or 0; and its free, once CUDA has made it. The address may be
  // in use again by then: a request of another number is left alone, as is one that was not noted.
  [[nodiscard]] std::uint64_t find_unplanned(CUdeviceptr address) const noexcept;
  void note_original_freed(CUdeviceptr address, std::uint64_t number) noexcept;

  // The live range that holds `address`; nothing when there is none. In constant time for starts, else logarithmic in
  // what is live, except for the first time.
  std::optional<LiveRange> find_live(CUdeviceptr address) noexcept;
  // Notes what the program set for the live range that holds `address`, if there is one.
  void set_sync_memops(CUdeviceptr address, bool set) noexcept;

  // Call before the original function destroys the stream: the event behind its frees is recorded now.
  void stream_destroyed(CUstream stream) noexcept;

  // What is known of the order between the context's streams; without a lock.
  [[nodiscard]] StreamClocks& clocks() noexcept { return order_.clocks(); }
  // A stream's clock, made on first sight; null: it has none. Valid until the stream is destroyed. Pre: the stream is
  // of `context`.
  StreamClock* clock(StreamKey stream) noexcept;
  // Kernels of `peer` may touch this device's memory from now on.
  CUresult grant_access(int peer) noexcept;

  // Gives idle memory back to the device until at most `keep_bytes` are held: unmaps the views that nothing lives in,
  // releases the handles that nothing lives on, if the device is done with both. Returns the bytes given back. Never
  // waits. The plan's memory is kept as long as the plan is served.
  std::uint64_t trim(std::uint64_t keep_bytes = 0) noexcept;
  // The same for a caller that was refused `bytes` (0: unknown). Gives nothing back when all idle memory would not be
  // enough; a plan gives up its idle memory last.
  std::uint64_t make_room(std::uint64_t bytes) noexcept;

  // From now on the heap creates no memory beyond `bytes`. What it holds above that stays until it is idle; a plan's
  // memory is created before any limit is set. ~0: no limit.
  void set_limit(std::uint64_t bytes) noexcept;
  // Physical memory that is held, in bytes, and the part of it that is kept for small requests; a plan has no such
  // part. One load each.
  [[nodiscard]] std::uint64_t held_bytes() const noexcept { return held_bytes_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t held_for_small() const noexcept {
    return held_for_small_.load(std::memory_order_relaxed);
  }
  // Where that part is mapped; it stays the same, and is empty until there is one. Two loads.
  struct Addresses {
    CUdeviceptr begin = 0;
    CUdeviceptr end = 0;
  };
  [[nodiscard]] Addresses addresses_for_small() const noexcept {
    return {small_begin_.load(std::memory_order_relaxed), small_end_.load(std::memory_order_relaxed)};
  }
  // The idle part of it, and the largest contiguous part of that.
  [[nodiscard]] std::uint64_t free_bytes() const noexcept;
  [[nodiscard]] std::uint64_t largest_free() const noexcept;

  // The handles behind a live block, as they are mapped one behind the other: the block begins `offset` bytes behind
  // the beginning of the first. They stay the heap's, and are held as long as the block is live.
  struct Backing {
    std::vector<MappedHandle> handles;
    std::uint64_t offset = 0;
  };
  // Nothing when no live block starts at `address`, and when the host is out of memory.
  std::optional<Backing> backing(CUdeviceptr address) noexcept;

  // Calls `visitor` for every mapped home range, in order, then for every live block that is not at home, with the home
  // ranges whose bytes it uses. The visitor is called under the heap's lock and must not call back; it may throw
  // std::bad_alloc, which ends the visit.
  struct Visitor {
    virtual ~Visitor() = default;
    virtual void home(CUdeviceptr address, std::uint64_t bytes) = 0;
    virtual void stitched(CUdeviceptr address, std::uint64_t bytes) = 0;
    virtual void used_by_stitched(CUdeviceptr home_address, std::uint64_t bytes) = 0;
  };
  void describe(Visitor& visitor) noexcept;

  // The release threshold of a pool (CU_MEMPOOL_ATTR_RELEASE_THRESHOLD): memory held above it, and above that of every
  // other pool, is given back at the next synchronisation, unless mapping takes more than it may. Until one is set,
  // everything is kept. Synchronising takes two calls, before the program's own and after it succeeded.
  void set_release_threshold(CUmemoryPool pool, std::uint64_t bytes) noexcept;
  // From now on synchronising gives nothing back, whatever the thresholds are: the caller uses `trim`.
  void keep_idle_memory() noexcept;
  void before_synchronization() noexcept;
  // As StreamOrder::blocking_streams_exist.
  void blocking_streams_exist() noexcept;
  void after_synchronization() noexcept;
  // Idle bytes of the plan, which would be free memory under CUDA.
  [[nodiscard]] std::uint64_t idle_plan_bytes() const noexcept;

  // The figures for a pool; `reset_pool_high` is cuMemPoolSetAttribute(..._HIGH, 0).
  [[nodiscard]] PoolUse pool_use(CUmemoryPool pool) const noexcept;
  void reset_pool_high(CUmemoryPool pool, bool used, bool reserved) noexcept;

  // Call when the program destroys a pool: its handle may come back as another one.
  void pool_destroyed(CUmemoryPool pool) noexcept;

  [[nodiscard]] Statistics statistics() const noexcept;
  // The same without waiting: false when another thread uses the heap just now.
  bool try_statistics(Statistics* statistics) const noexcept;
  // From now on other processes can read figures in `published`, which must outlive the heap.
  void publish_in(PublishedFigures* published) noexcept;
  [[nodiscard]] CUcontext context() const noexcept { return context_; }
  [[nodiscard]] int device() const noexcept { return device_; }

 private:
  // Held by everything that needs to know the free bytes: completes a deferred free first. `allocate` and `free_async`
  // take the mutex itself, and so does, as PlainLock, what looks at nothing but live ranges and figures.
  class CompletingLock {
   public:
    explicit CompletingLock(Heap& heap) : guard_(heap.mutex_) { heap.complete_deferred_free(); }

   private:
    std::lock_guard<HeapMutex> guard_;
  };
  using PlainLock = std::lock_guard<HeapMutex>;
  struct Offsets;

  // A request whose stream and pool are known to the heap.
  struct Request {
    std::uint64_t bytes = 0;           // as requested
    StreamOrdinal stream = kNoStream;  // kNoStream: for all streams at once
    PoolIndex pool = kNoPool;
  };
  // Of how many streams whose work is pending the frees are queried at a time: a query costs as much as a request.
  static constexpr std::size_t kStreamsPerPoll = 8;
  static constexpr std::size_t kAllStreams = ~std::size_t{0};

  Heap(Driver& driver, int device, CUcontext context, const HeapOptions& options, Planned planned,
       const Offsets& offsets, LogFunction log);
  static std::optional<Offsets> divide_offsets(Driver& driver, int device, const Planned& planned, bool dynamic);
  static std::uint64_t rounded(std::uint64_t bytes) { return plan::round_up(bytes, plan::kUnitBytes); }

  void stop_serving() noexcept;
  void release_all(bool context_lives) noexcept;

  // Allocations: each returns the address, or 0 when it does not serve the request. `stream` null: for all streams.
  std::optional<CUdeviceptr> allocate_slow_path(std::unique_lock<HeapMutex> lock, std::size_t bytes,
                                                const StreamKey* stream, CUmemoryPool pool, bool capturing,
                                                bool* exhausted = nullptr) noexcept;
  CUdeviceptr serve(std::unique_lock<HeapMutex> lock, std::size_t bytes, const StreamKey* stream, CUmemoryPool pool,
                    bool capturing, bool* exhausted);
  bool admit(std::size_t bytes, const StreamKey* stream, CUmemoryPool pool, Request* request);
  CUdeviceptr serve_slot(std::uint32_t slot, const Request& request);
  CUdeviceptr serve_spare(const Request& request);
  CUdeviceptr take_slot(std::uint32_t slot, const Request& request);
  void log_dropped_plan() const noexcept;
  CUdeviceptr serve_dynamic(const Request& request, bool last_resort);
  [[nodiscard]] bool needs_bytes_of_plan(const Request& request) const;
  void merge(StreamOrdinal stream);

  // Frees.
  void complete_deferred_free() noexcept {
    if (dynamic_ && dynamic_->has_deferred_free()) complete_deferred_free_now();
  }
  void complete_deferred_free_now() noexcept;
  CUresult free_slow_path(std::unique_lock<HeapMutex> lock, CUdeviceptr address, StreamKey stream,
                          bool context_is_current) noexcept;
  CUresult free_after_event(CUdeviceptr address, StreamKey stream, std::optional<StreamKey> owner) noexcept;
  CUresult record_event_on(StreamKey stream, CUcontext* context, CUevent* event) noexcept;
  CUresult create_event(CUcontext context, CUevent* event) noexcept;
  void notify_complete(PendingFrees::Free& free) const noexcept;
  void poll_pending_frees();
  bool collect_pending_frees(std::size_t max_streams = kStreamsPerPoll);
  void count_free(const LiveEntry& entry);
  void make_reusable(const LiveEntry& entry, StreamOrdinal stream) { make_reusable(entry, stream, stream); }
  void make_reusable(const LiveEntry& entry, StreamOrdinal stream, StreamOrdinal preferred);
  void release_freed_handles(const LiveEntry& entry);

  // Memory under pressure.
  CUdeviceptr serve_under_pressure(const StreamKey* stream, CUmemoryPool pool, Request request);
  CUdeviceptr reclaim_and_serve(const Request& request);
  bool trim_cuda_pools();
  void log_exhaustion(const Request& request);
  std::uint64_t release_idle(std::uint64_t keep_bytes);
  void update_release_threshold() noexcept;
  [[nodiscard]] std::uint64_t device_free_bytes() const;
  [[nodiscard]] std::uint64_t unlocked_free_bytes() const noexcept;
  [[nodiscard]] std::uint64_t unlocked_available_bytes() const noexcept;

  // Where bytes lie.
  PhysicalRanges ranges(const LiveEntry& entry);
  [[nodiscard]] CUdeviceptr home_address(std::uint64_t at) const;
  // The handle of a physical byte, and the first physical byte of it.
  [[nodiscard]] std::pair<std::uint64_t, MappedHandle> handle_at(std::uint64_t at) const;

  // Figures.
  void note(CUdeviceptr address, std::size_t bytes, PoolIndex pool) noexcept;
  void update_physical() noexcept;
  [[nodiscard]] Statistics gather_statistics() const noexcept;
  [[nodiscard]] std::uint64_t mapping_calls() const noexcept;

  Driver& driver_;
  const std::uint64_t device_bytes_;  // no request for more is looked at
  const int device_;
  const CUcontext context_;
  const LogFunction log_;
  Planned planned_;
  const HeapOptions options_;
  std::atomic<bool> refuses_{false};
  std::atomic<bool> synchronized_{false};  // the program has, since pending frees were looked at
  std::atomic<std::uint64_t> release_threshold_{~std::uint64_t{0}};
  std::atomic<std::uint64_t> held_bytes_{0};
  std::atomic<std::uint64_t> held_for_small_{0};
  std::atomic<CUdeviceptr> small_begin_{0};
  std::atomic<CUdeviceptr> small_end_{0};
  FreeFence fence_;

  // Covers everything below, and planned_, except for the `contains` of planned_ and dynamic_ and for the clocks of
  // order_.
  mutable HeapMutex mutex_;
  // In one cache line, with the begin of the next what most requests touch.
  LiveTable live_;
  std::unique_ptr<Dynamic> dynamic_;  // null: off; knows order_ and planned_'s arena, and is destroyed before them
  StreamOrder order_;
  LiveTable unplanned_;
  PendingFrees pending_frees_;
  std::uint32_t requests_until_poll_ = 0;
  Figures figures_;
  PublishedFigures* published_ = nullptr;  // null: figures are not shown
  std::uint64_t mapping_calls_at_start_ = 0;
  std::uint64_t mapping_ns_at_start_ = 0;
  int exhaustion_logs_ = 0;
  bool keeps_idle_memory_ = false;
  std::atomic<bool> closed_{false};  // set under the lock
};

}  // namespace stalloc::serve
