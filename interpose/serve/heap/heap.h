// SPDX-License-Identifier: Apache-2.0
// The heap of one device, which serves its memory: the plan's slots, the dynamic sub-allocator for requests without a
// slot, the order between streams, and the figures. DESIGN: docs/design.md, "Serving".
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
#include "plan/running/step_server.h"

namespace stalloc::serve {

// Writes one line for the user, without a newline, to the library's log: a warning, or what only a curious user wants
// to know. It is called on the thread of a request, without any lock held, and must not throw.
enum class LogKind : std::uint8_t { Warning, Info };
using LogFunction = void (*)(LogKind kind, const char* text);

// A live range of addresses, as the program asked for it.
struct LiveRange {
  CUdeviceptr base = 0;
  std::size_t bytes = 0;        // as requested
  std::uint64_t number = 0;     // unique among all requests that this heap ever serves
  bool from_pool = false;       // true: a stream-ordered request; false: a request of cuMemAlloc
  CUmemoryPool pool = nullptr;  // the pool of a stream-ordered request; null: the device's own
  bool sync_memops = false;     // the latest value given to `set_sync_memops`
};

// Thread-safe: any thread may call any function at any time, except where a precondition says otherwise. Where host
// memory is missing, `create` throws; every other function throws nothing, and leaves the request unplanned or does
// nothing. Driver calls that a request needs are made on the thread of the request. One lock protects a heap
// (HeapMutex); functions that do not take it are marked as lock-free.
class Heap {
 public:
  // Creates the heap of `device`. It reserves, creates and maps everything that `plan` names. Without a plan (null, or
  // one that places nothing) every request is served dynamically. The plan is not needed after the call.
  //
  // `context` is the context that the heap serves; it must be current. Requests made under any other context belong to
  // the original allocator. `driver` must outlive the heap. `log` may be null.
  //
  // On failure everything is released, null is returned, and `why` says in one line what did not fit. Everything is
  // also released when it throws std::bad_alloc.
  // Pre: plan::decode_plan has read the plan, and it is a plan for `device`.
  static std::unique_ptr<Heap> create(Driver& driver, int device, const plan::DevicePlan* plan, CUcontext context,
                                      const HeapOptions& options, std::string* why, LogFunction log = nullptr);
  // Closes the heap. Do not destroy a heap at the end of the process, when the driver may be unloaded already.
  // Pre: no stream of the context is being captured, and no other thread uses the heap.
  ~Heap();
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  // Call `close` before the context ends. It waits for the context's work and releases all memory. Other threads may
  // still call the heap: it has no live ranges any more and serves no request. Its addresses stay reserved until it is
  // destroyed, so that `owns` tells a late free of its former memory from one of memory that the driver serves since.
  // It returns false when the driver refuses to wait (the device has failed, or a stream is being captured); then
  // everything is still mapped. Call `close_after_context` when the context has ended; it releases what is left.
  // Both are idempotent.
  bool close() noexcept;
  void close_after_context() noexcept;
  // True once either function was called. Lock-free.
  [[nodiscard]] bool is_closed() const noexcept { return closed_.load(std::memory_order_acquire); }
  // True when the plan was dropped and HeapOptions::plan_is_strict says that all later requests fail. Lock-free.
  [[nodiscard]] bool refuses() const noexcept { return refuses_.load(std::memory_order_relaxed); }

  // Serves `bytes` bytes, ordered on `stream`: at the planned place if the plan foresees the request and the place is
  // free, otherwise dynamically. `pool` is the driver's pool that the request names; null means the device's own pool,
  // also if the program names that pool by its handle. Never waits for the device.
  //
  // Returns nothing when the original allocator has to serve the request; the caller then reports the result by
  // `note_unplanned`. This is so for a captured stream, for slots that the plan leaves to CUDA, for more bytes than the
  // device has, and when memory is exhausted. The last two cases set `*exhausted`, unless it is null.
  // Pre: `context` is current.
  std::optional<CUdeviceptr> allocate(std::size_t bytes, StreamKey stream, CUmemoryPool pool,
                                      bool* exhausted = nullptr) noexcept;
  // The same for cuMemAlloc, whose caller may use the bytes on any stream at once. So only bytes on which no work is
  // pending are served.
  std::optional<CUdeviceptr> allocate_sync(std::size_t bytes) noexcept;
  // Reports that the original allocator has served a request of the program. `note_unplanned_sync` is for requests that
  // name no pool (cuMemAlloc).
  void note_unplanned(CUdeviceptr address, std::size_t bytes, CUmemoryPool pool) noexcept;
  void note_unplanned_sync(CUdeviceptr address, std::size_t bytes) noexcept;

  // True for addresses inside the heap's reservations, whether or not something is live there. Lock-free.
  [[nodiscard]] bool owns(CUdeviceptr address) const noexcept {
    return planned_.contains(address) || (dynamic_ && dynamic_->contains(address));
  }

  // Frees a range that `allocate` served, as cuMemFreeAsync. The bytes can be reused on `stream` at once, and on other
  // streams after the free. If `stream` belongs to another context, they can be reused once an event that is recorded
  // now has completed. `context_is_current` says that the caller knows `context` to be the thread's current context.
  // Never waits for the device.
  //
  // Returns CUDA_ERROR_INVALID_VALUE, and the range stays live, when no live range starts at `address`, and when the
  // stream is being captured: a CUDA graph may free only what a graph has allocated.
  CUresult free_async(CUdeviceptr address, StreamKey stream, bool context_is_current = false) noexcept;
  // Like `free_async`, for a thread that works on another stream, `user`. That stream may have been given work on the
  // bytes without any other sign of it. So the bytes can be reused on `stream` at once, and on every other stream after
  // the work of both. Returns CUDA_ERROR_NOT_SUPPORTED, and the range stays live, when the heap cannot tell the two
  // streams apart, because one of them belongs to another context or there are too many streams.
  // Pre: `context` is current.
  CUresult free_with_user(CUdeviceptr address, StreamKey stream, StreamKey user) noexcept;
  // Frees a range once the work given to `stream` so far is complete. No other stream is made to wait for `stream`
  // because of these bytes. `owner` is the stream that the range was served for: the bytes are offered to it first, and
  // HeapOptions::on_free_complete receives it; without an owner that is not called. Returns what `free_async` returns,
  // or the driver's error if no event can be recorded on `stream`; the range then stays live.
  CUresult free_when_complete(CUdeviceptr address, StreamKey stream, std::optional<StreamKey> owner) noexcept;
  // Waits on the host until all frees that are pending now are complete: those of `free_when_complete`, and those on
  // streams of other contexts. Also returns when the device has failed. Other threads can use the heap meanwhile.
  // Returns whether any free completed. Pre: no stream is being captured.
  bool wait_for_pending_frees() noexcept;
  // Call `before_context_end` before any context of the process ends, and `after_context_end` afterwards. Between the
  // two, no event of that context is used. `ended` says whether the context did end; then none of its work is left, and
  // frees that waited for it are complete. If work of the context may go on, omit the second call: frees that wait for
  // its events then stay pending for good.
  void before_context_end(CUcontext context) noexcept;
  void after_context_end(CUcontext context, bool ended) noexcept;
  // Calls HeapOptions::on_free_complete for every free that is still pending when the program ends. It does not wait
  // for the heap's lock: if another thread holds it, nothing is called.
  void notify_pending_frees_at_exit() noexcept;
  // Frees a range as cuMemFree: waits for all work of the context, and the bytes can then be reused on every stream.
  // For a range from a pool it does not wait, since CUDA requires that the program no longer uses it. Returns what CUDA
  // returns. When CUDA refuses (another thread captures in global mode, or the device has failed), the range stays
  // live.
  CUresult free_sync(CUdeviceptr address) noexcept;
  // `find_unplanned` returns the number of a range that was reported by `note_unplanned`; 0: there is none at
  // `address`. After CUDA has freed the range, call `note_original_freed` with that number. The address may be in use
  // again by then: a range with another number is left alone.
  [[nodiscard]] std::uint64_t find_unplanned(CUdeviceptr address) const noexcept;
  void note_original_freed(CUdeviceptr address, std::uint64_t number) noexcept;

  // Returns the live range that contains `address`, if there is one. Takes constant time for the first address of a
  // range. For other addresses it takes logarithmic time, except that the first call builds an index.
  std::optional<LiveRange> find_live(CUdeviceptr address) noexcept;
  // Stores CU_POINTER_ATTRIBUTE_SYNC_MEMOPS for the live range that contains `address`, if there is one.
  void set_sync_memops(CUdeviceptr address, bool set) noexcept;

  // Call before the original function destroys the stream: the event after its frees must be recorded now. May wait for
  // room in the stream's queue, as that function does.
  void stream_destroyed(CUstream stream) noexcept;

  // The order between the context's streams, as far as it is known. Lock-free.
  [[nodiscard]] StreamClocks& clocks() noexcept { return order_.clocks(); }
  // Returns the clock of a stream, which is created at the first call; null: the stream has none. The heap owns it, and
  // it is valid until the stream is destroyed. Pre: the stream belongs to `context`.
  StreamClock* clock(StreamKey stream) noexcept;
  // From now on, kernels of the device `peer` may access this heap's memory, but for parts that the driver refuses.
  // Returns its first refusal.
  CUresult grant_access(int peer) noexcept;

  // Returns idle memory to the device until at most `keep_bytes` bytes are held. It unmaps views without live ranges
  // and releases handles without live ranges, if no pending work uses them. A plan's memory is kept while the plan is
  // served. Returns the number of bytes released. Never waits.
  std::uint64_t trim(std::uint64_t keep_bytes = 0) noexcept;
  // Whether `trim` may release more when the device has completed its work so far. Call it after `trim`.
  [[nodiscard]] bool may_release_more() noexcept;
  // The same for a caller whose request for `bytes` bytes was refused (0: the number is unknown). Releases nothing when
  // all idle memory would not be enough. When nothing else is idle and the device has too little free memory, the plan
  // is dropped, if it may be and options.plan_is_strict does not forbid it, and its idle memory is released.
  std::uint64_t make_room(std::uint64_t bytes, bool may_drop_plan) noexcept;

  // From now on, the heap creates no memory beyond a total of `bytes` bytes; ~0 means no limit. What it holds beyond
  // that stays until it is idle. A plan's memory is created before any limit is set.
  void set_limit(std::uint64_t bytes) noexcept;
  // Physical memory that is held, in bytes, and the part of it that only small requests use. A plan has no such part.
  // Lock-free.
  [[nodiscard]] std::uint64_t held_bytes() const noexcept { return held_bytes_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t held_for_small() const noexcept {
    return held_for_small_.load(std::memory_order_relaxed);
  }
  // The addresses of that part. They are empty until it exists, and never change afterwards. Lock-free.
  struct Addresses {
    CUdeviceptr begin = 0;
    CUdeviceptr end = 0;
  };
  [[nodiscard]] Addresses addresses_for_small() const noexcept {
    return {small_begin_.load(std::memory_order_relaxed), small_end_.load(std::memory_order_relaxed)};
  }
  // The idle part of the held memory, and the largest contiguous part of that; in bytes.
  [[nodiscard]] std::uint64_t free_bytes() const noexcept;
  [[nodiscard]] std::uint64_t largest_free() const noexcept;

  // The handles of a live block, in the order of its addresses. The block begins `offset` bytes after the beginning of
  // the first handle. The heap owns the handles and keeps them as long as the block is live.
  struct Backing {
    std::vector<MappedHandle> handles;
    std::uint64_t offset = 0;
  };
  // Nothing when no live block starts at `address`, or when host memory is missing.
  std::optional<Backing> backing(CUdeviceptr address) noexcept;

  // Describes the heap's memory. Calls the visitor for every mapped range of the home view, in order, and then for
  // every live block outside the home view, followed by the ranges of the home view whose bytes it uses. The visitor is
  // called with the heap's lock held, so it must not call the heap. It may throw std::bad_alloc, which ends the visit.
  struct Visitor {
    virtual ~Visitor() = default;
    virtual void home(CUdeviceptr address, std::uint64_t bytes) = 0;
    virtual void stitched(CUdeviceptr address, std::uint64_t bytes) = 0;
    virtual void used_by_stitched(CUdeviceptr home_address, std::uint64_t bytes) = 0;
  };
  void describe(Visitor& visitor) noexcept;

  // Sets the release threshold of a pool in bytes (CU_MEMPOOL_ATTR_RELEASE_THRESHOLD). Memory held beyond the largest
  // threshold of all pools is released when the program synchronizes next, unless the mapping budget is overdrawn.
  // Until a threshold is set, everything is kept.
  void set_release_threshold(CUmemoryPool pool, std::uint64_t bytes) noexcept;
  // From now on, synchronizing releases nothing, whatever the thresholds are: the caller uses `trim`.
  void keep_idle_memory() noexcept;
  // Call in a call of the program that waits while another thread waits for room in the queue of a stream: creating an
  // event does so, too. While another thread has the lock, creates none. `streams`: how many streams the program has
  // created, and the default one, as far as the caller knows.
  void create_events_ahead(std::size_t streams = 0) noexcept;
  // Takes one of these events, which the caller then owns; null: none is left. `give_back_event` takes an event of the
  // heap's context that will not be queried any more; streams may still wait for its latest record.
  CUevent take_unused_event() noexcept;
  void give_back_event(CUevent event) noexcept;
  // Call when the program has synchronized with a stream, an event or the context.
  void after_synchronization() noexcept;
  // See StreamOrder::blocking_streams_exist.
  void blocking_streams_exist() noexcept;
  // The idle bytes of the plan, which would be free memory of the device under CUDA.
  [[nodiscard]] std::uint64_t idle_plan_bytes() const noexcept;

  // The figures of a pool. `reset_pool_high` does what cuMemPoolSetAttribute does for the attributes ..._HIGH.
  [[nodiscard]] PoolUse pool_use(CUmemoryPool pool) const noexcept;
  void reset_pool_high(CUmemoryPool pool, bool used, bool reserved) noexcept;

  // Call when the program destroys a pool. CUDA may give its handle to a new pool.
  void pool_destroyed(CUmemoryPool pool) noexcept;

  [[nodiscard]] Statistics statistics() const noexcept;
  // The same without waiting for the heap's lock: false, and nothing is written, when another thread holds it.
  bool try_statistics(Statistics* statistics) const noexcept;
  // From now on, the heap also writes its figures to `published`, where other processes can read them. `published` must
  // outlive the heap.
  void publish_in(PublishedFigures* published) noexcept;
  [[nodiscard]] CUcontext context() const noexcept { return context_; }
  [[nodiscard]] int device() const noexcept { return device_; }

 private:
  // Locks the heap and completes the deferred free. Everything that needs to know which bytes are free takes this lock.
  // `allocate` and `free_async` lock the mutex themselves.
  class CompletingLock {
   public:
    explicit CompletingLock(Heap& heap) : guard_(heap.mutex_) { heap.complete_deferred_free(); }

   private:
    std::lock_guard<HeapMutex> guard_;
  };
  // Only locks the heap: for functions that use live ranges and figures, but not the free bytes.
  using PlainLock = std::lock_guard<HeapMutex>;
  struct Offsets;
  using StepServer = plan::StepServer<Dynamic>;

  // A request whose stream and pool are known to the heap.
  struct Request {
    std::uint64_t bytes = 0;           // as requested
    StreamOrdinal stream = kNoStream;  // kNoStream: the bytes must be usable on every stream
    PoolIndex pool = kNoPool;
  };

  Heap(Driver& driver, int device, CUcontext context, const HeapOptions& options, Planned planned,
       const Offsets& offsets, LogFunction log);
  static std::optional<Offsets> divide_offsets(Driver& driver, int device, const Planned& planned, bool dynamic);
  static std::uint64_t rounded(std::uint64_t bytes) { return plan::round_up(bytes, plan::kUnitBytes); }

  void stop_serving() noexcept;
  void release_all(bool context_lives) noexcept;

  // Allocations. Each function returns an address, or 0 when it does not serve the request. If `stream` is null, the
  // bytes must be usable on every stream. All functions from here on are called with the lock held, except those that
  // take it or say so.
  std::optional<CUdeviceptr> allocate_slow_path(std::unique_lock<HeapMutex> lock, std::size_t bytes,
                                                const StreamKey* stream, CUmemoryPool pool, bool capturing,
                                                bool* exhausted = nullptr) noexcept;
  CUdeviceptr serve(std::unique_lock<HeapMutex> lock, std::size_t bytes, const StreamKey* stream, CUmemoryPool pool,
                    bool capturing, bool* exhausted);
  CUdeviceptr make_waits(std::unique_lock<HeapMutex>& lock, CUdeviceptr served) noexcept;
  void take_back(CUdeviceptr address) noexcept;
  bool admit(std::size_t bytes, const StreamKey* stream, CUmemoryPool pool, Request* request);
  CUdeviceptr serve_slot(std::uint32_t slot, const Request& request);
  CUdeviceptr serve_in_gap(std::uint32_t slot, const Request& request);
  CUdeviceptr serve_spare(const Request& request);
  CUdeviceptr take_slot(std::uint32_t slot, const Request& request);
  void log_dropped_plan() const noexcept;
  CUdeviceptr serve_dynamic(const Request& request, bool last_resort);
  CUdeviceptr note_dynamic(Place place, const Request& request);
  std::optional<Place> serve_step(const Request& request) noexcept;
  void note_served(std::size_t bytes, StreamOrdinal stream) noexcept;
  void note_settled() noexcept;
  void note_freed(const LiveEntry& entry, StreamOrdinal stream) noexcept;
  void log_planned_step(const StepServer::TakenUp& step) const noexcept;
  [[nodiscard]] bool needs_bytes_of_plan(const Request& request) const;
  void merge(StreamOrdinal stream);

  // Frees.
  void complete_deferred_free() noexcept {
    if (dynamic_ && dynamic_->has_deferred_free()) complete_deferred_free_now();
  }
  void complete_deferred_free_now() noexcept;
  CUresult free_slow_path(std::unique_lock<HeapMutex> lock, CUdeviceptr address, StreamKey stream,
                          bool context_is_current) noexcept;
  CUresult free_after_event(std::unique_lock<HeapMutex> lock, CUdeviceptr address, StreamKey stream,
                            std::optional<StreamKey> owner) noexcept;
  bool collect_pending_frees(std::size_t max_streams);
  void free_or_defer(const LiveEntry& entry, StreamOrdinal ordinal) noexcept;
  bool wants_event(const LiveEntry& entry, StreamOrdinal ordinal) noexcept;
  bool serves_others(const LiveEntry& entry) noexcept;
  StreamOrder::EventAtFree record_event(std::unique_lock<HeapMutex>& lock, StreamOrdinal ordinal) noexcept;
  StreamOrdinal ordinal_after(const StreamOrder::EventAtFree& event) noexcept;
  bool remove_live(CUdeviceptr address, LiveEntry* entry) noexcept;
  void make_reusable(const LiveEntry& entry, StreamOrdinal stream) { make_reusable(entry, stream, stream); }
  void make_reusable(const LiveEntry& entry, StreamOrdinal stream, StreamOrdinal preferred);
  void release_slot(PhysicalRanges freed, StreamOrdinal preferred) noexcept;
  void release_freed_handles(const LiveEntry& entry);

  // Memory under pressure. serve_under_pressure and log_exhaustion take the lock.
  CUdeviceptr serve_under_pressure(const StreamKey* stream, CUmemoryPool pool, Request request);
  void find_all_complete() noexcept;
  CUdeviceptr reclaim_and_serve(const Request& request);
  bool trim_cuda_pools();
  void log_exhaustion(const Request& request);
  void log_given_up_plan(std::uint64_t released) const noexcept;
  std::uint64_t release_idle(std::uint64_t keep_bytes);
  void update_release_threshold() noexcept;
  [[nodiscard]] std::uint64_t device_free_bytes() const;
  // The idle bytes of the heap; with those that the device has free, the bytes available to a request.
  [[nodiscard]] std::uint64_t free_bytes_locked() const noexcept;
  [[nodiscard]] std::uint64_t available_bytes_locked() const noexcept;
  [[nodiscard]] std::uint64_t idle_plan_bytes_locked() const noexcept;
  [[nodiscard]] bool needs_memory_of_plan(std::uint64_t bytes) const;

  // The places of bytes.
  PhysicalRanges ranges(const LiveEntry& entry);
  [[nodiscard]] CUdeviceptr home_address(std::uint64_t at) const;
  // The handle that contains a physical offset, and the physical offset at which the handle begins.
  [[nodiscard]] std::pair<std::uint64_t, MappedHandle> handle_at(std::uint64_t at) const;

  // Figures.
  void note(CUdeviceptr address, std::size_t bytes, PoolIndex pool) noexcept;
  void update_physical() noexcept;
  [[nodiscard]] Statistics gather_statistics() const noexcept;
  [[nodiscard]] std::uint64_t mapping_calls() const noexcept;

  Driver& driver_;
  const std::uint64_t device_bytes_;  // larger requests fail at once
  const int device_;
  const CUcontext context_;
  const LogFunction log_;
  Planned planned_;
  const HeapOptions options_;
  std::atomic<bool> refuses_{false};
  // The latest free when the program synchronized, plus 1; 0: it has not since the latest request.
  std::atomic<std::uint64_t> synchronized_after_{0};
  std::atomic<std::uint64_t> release_threshold_{~std::uint64_t{0}};
  std::atomic<std::uint64_t> held_bytes_{0};
  std::atomic<std::uint64_t> held_for_small_{0};
  std::atomic<CUdeviceptr> small_begin_{0};
  std::atomic<CUdeviceptr> small_end_{0};
  FreeFence fence_;

  // Protects all members below and planned_. Exceptions: `contains` of planned_ and dynamic_, and the clocks of order_.
  mutable HeapMutex mutex_;
  // The members that most requests use come first, in one cache line and the beginning of the next.
  LiveTable live_;
  std::unique_ptr<Dynamic> dynamic_;  // null: off; refers to order_ and planned_'s arena, and is destroyed before them
  std::optional<StepServer> steps_;   // nothing with a plan, and if the policy says so
  StreamOrder order_;
  LiveTable unplanned_;
  PendingFrees pending_frees_;
  Figures figures_;
  PublishedFigures* published_ = nullptr;  // null: figures are not published
  std::uint64_t mapping_calls_at_start_ = 0;
  std::uint64_t mapping_ns_at_start_ = 0;
  std::uint64_t limit_ = ~std::uint64_t{0};  // of the physical memory, that of a plan included
  int exhaustion_logs_ = 0;
  bool keeps_idle_memory_ = false;
  std::atomic<bool> closed_{false};  // set under the lock
  bool created_ = false;             // `create` has succeeded: work may use the memory
};

}  // namespace stalloc::serve
