// Running sums: what is live, what was, by pool. No thread-safety of its own.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "interpose/serve/heap/shown_figures.h"

namespace stalloc::serve {

// All figures since start, in bytes or counts. live counts every request of the program on this device that stalloc
// saw, as requested; physical is what the plan's arena and the dynamic sub-allocator hold. Unplanned is what the
// original allocator served.
struct alignas(64) Statistics {
  // What a dynamic request and its free change, in one cache line.
  std::uint64_t dynamic_requests = 0;
  std::uint64_t dynamic_live_bytes = 0;
  std::uint64_t planned_live_bytes = 0;
  std::uint64_t unplanned_live_bytes = 0;
  std::uint64_t live_peak_bytes = 0;         // of planned + dynamic + unplanned
  std::uint64_t served_live_peak_bytes = 0;  // of planned + dynamic: what physical is held for
  std::uint64_t pool_live_bytes = 0;         // of requests that name a pool, whoever served them
  std::uint64_t pool_live_peak_bytes = 0;    // what torch.cuda.max_memory_allocated reports

  std::uint64_t physical_bytes = 0;
  std::uint64_t physical_peak_bytes = 0;
  std::uint64_t planned_live_peak_bytes = 0;
  std::uint64_t planned_requests = 0;
  std::uint64_t unplanned_requests = 0;
  std::uint64_t unplanned_large_requests = 0;  // of 1 MiB or more
  std::uint64_t refused_slots = 0;             // the slot's bytes were taken, or could not be ordered on the stream
  std::uint64_t resynchronisations = 0;        // jumps of the cursor
  std::uint64_t stream_waits = 0;              // cross-stream orderings made
  std::uint64_t spared_waits = 0;              // those that the program had made itself
  std::uint64_t mapping_calls_at_start = 0;    // create, map, set access
  std::uint64_t mapping_calls_after_start = 0;
  std::uint64_t mapping_nanoseconds_at_start = 0;  // spent in these calls
  std::uint64_t mapping_nanoseconds_after_start = 0;
  // Of the dynamic sub-allocator:
  std::uint64_t dynamic_physical_bytes = 0;
  std::uint64_t stitches = 0;   // views made
  std::uint64_t view_hits = 0;  // requests served in a view made before
  std::uint64_t grows = 0;      // requests that memory was created for
  std::uint64_t borrows = 0;    // requests served from another stream's bytes, or idle planned ones
  std::uint64_t misses = 0;     // requests it could not serve, even under pressure
  std::uint64_t views = 0;      // mapped now
};

// What a pool of the driver would say of the requests made in its name.
struct PoolUse {
  bool known = false;  // a request named the pool; when none did, the driver alone knows
  // Live requests in the pool's name, as requested, planned and unplanned: the whole answer.
  std::uint64_t used = 0, used_high = 0;
  // Its share of what the heap holds: what unplanned requests take is to be added from the driver's own answer. Bytes
  // that nothing lives in count for the first pool that was named; any other holds what is live in it.
  std::uint64_t reserved = 0, reserved_high = 0;
};

using PoolIndex = std::uint8_t;
inline constexpr PoolIndex kNoPool = 255;  // the request names no pool (cudaMalloc)

class Figures {
 public:
  // The index of `pool` (null: the device's own), given on first sight; kNoPool when there are too many pools.
  PoolIndex pool_index(CUmemoryPool pool) noexcept {
    const PoolIndex known = find(pool);
    return known != kNoPool ? known : add_pool(pool);
  }

  // What a pool may hold beyond what is live in it, in bytes; 0 until it is set, as CUDA's default.
  void set_release_threshold(CUmemoryPool pool, std::uint64_t bytes) noexcept;
  // Of the pool that may hold most.
  [[nodiscard]] std::uint64_t release_threshold() const noexcept;
  // The handle that `pool_index` gave the index to.
  [[nodiscard]] CUmemoryPool pool(PoolIndex index) const noexcept { return pools_[index].handle; }

  // The pool is gone; its handle may come back as another one.
  void pool_destroyed(CUmemoryPool pool) noexcept;

  void planned(std::uint64_t bytes, PoolIndex pool) noexcept;
  void planned_freed(std::uint64_t bytes, PoolIndex pool) noexcept;
  void dynamic(std::uint64_t bytes, PoolIndex pool) noexcept {
    ++sums_.dynamic_requests;
    sums_.dynamic_live_bytes += bytes;
    served(bytes, pool);
  }
  void dynamic_freed(std::uint64_t bytes, PoolIndex pool) noexcept {
    sums_.dynamic_live_bytes -= bytes;
    served_freed(bytes, pool);
  }
  void unplanned(std::uint64_t bytes, PoolIndex pool) noexcept;
  void unplanned_freed(std::uint64_t bytes, PoolIndex pool) noexcept;
  void slot_refused() noexcept { ++sums_.refused_slots; }
  void borrowed() noexcept { ++sums_.borrows; }
  void missed() noexcept {
    ++sums_.misses;
    if (shown_ != nullptr) ShownFigures::set(&shown_->misses, sums_.misses);
  }
  void physical_is(std::uint64_t bytes) noexcept;

  // From now on these figures are kept in `shown` too, which must outlive them.
  void show_in(ShownFigures* shown) noexcept;

  [[nodiscard]] const Statistics& sums() const noexcept { return sums_; }
  [[nodiscard]] PoolUse pool_use(CUmemoryPool pool) const noexcept;
  void reset_pool_high(CUmemoryPool pool, bool used, bool reserved) noexcept;

 private:
  struct alignas(64) Pool {
    CUmemoryPool handle = nullptr;
    bool alive = false;  // names a pool of the program
    bool shown = false;  // as shown_, in a line that the request touches anyway
    bool known = false;  // a request named it
    std::uint64_t release_threshold = 0;
    std::uint64_t used = 0, used_high = 0;
    std::uint64_t served = 0;         // of `used`: planned or dynamic
    std::uint64_t reserved_high = 0;  // as far as it was looked at
  };

  // kNoPool: not known.
  [[nodiscard]] PoolIndex find(CUmemoryPool pool) const noexcept {
    std::size_t i = 0;
    do {
      if (pools_[i].alive && pools_[i].handle == pool) return static_cast<PoolIndex>(i);
    } while (++i < pool_count_);
    return kNoPool;
  }
  PoolIndex add_pool(CUmemoryPool pool) noexcept;

  [[nodiscard]] bool is_shown(PoolIndex pool) const noexcept {
    return pool == kNoPool ? shown_ != nullptr : pools_[pool].shown;
  }
  void show_requests() noexcept;

  void added(std::uint64_t bytes, PoolIndex pool) noexcept {
    const std::uint64_t served = sums_.planned_live_bytes + sums_.dynamic_live_bytes;
    sums_.served_live_peak_bytes = std::max(sums_.served_live_peak_bytes, served);
    sums_.live_peak_bytes = std::max(sums_.live_peak_bytes, served + sums_.unplanned_live_bytes);
    if (is_shown(pool)) show_requests();
    if (pool == kNoPool) return;
    Pool& named = pools_[pool];
    named.known = true;
    named.used += bytes;
    named.used_high = std::max(named.used_high, named.used);
    sums_.pool_live_bytes += bytes;
    sums_.pool_live_peak_bytes = std::max(sums_.pool_live_peak_bytes, sums_.pool_live_bytes);
  }
  void removed(std::uint64_t bytes, PoolIndex pool) noexcept {
    if (is_shown(pool)) show_requests();
    if (pool == kNoPool) return;
    pools_[pool].used -= bytes;
    sums_.pool_live_bytes -= bytes;
  }
  void served(std::uint64_t bytes, PoolIndex pool) noexcept {
    added(bytes, pool);
    if (pool == kNoPool) return;
    Pool& named = pools_[pool];
    named.served += bytes;
    named.reserved_high = std::max(named.reserved_high, named.served);
  }
  void served_freed(std::uint64_t bytes, PoolIndex pool) noexcept {
    removed(bytes, pool);
    if (pool != kNoPool) pools_[pool].served -= bytes;
  }
  [[nodiscard]] std::uint64_t reserved(PoolIndex pool) const noexcept;

  Statistics sums_;
  ShownFigures* shown_ = nullptr;  // null: nobody looks
  std::array<Pool, 64> pools_{};
  std::size_t pool_count_ = 0;
};

}  // namespace stalloc::serve
