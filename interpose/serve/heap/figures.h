// SPDX-License-Identifier: Apache-2.0
// Counters of live and past requests, in total and for each pool.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "interpose/serve/heap/published_figures.h"

namespace stalloc::serve {

// All statistics of a device. statistics.def gives their meanings and units.
struct Statistics {
#define STALLOC_STATISTIC(name, unit, place, meaning) std::uint64_t name = 0;
#include "interpose/serve/heap/statistics.def"
#undef STALLOC_STATISTIC
};

// The figures of a pool that the driver would report, in bytes.
struct PoolUse {
  bool known = false;  // a request has named the pool; false: only the driver's figures count
  // `used` is the sum of live requests that name the pool, by whichever allocator, and `used_high` its high-water mark.
  // `served` is the part of `used` that this library served; the driver reports the rest.
  std::uint64_t used = 0, used_high = 0, served = 0;
  // The pool's share of the memory that the heap holds; the driver reports the rest. Idle memory counts for the first
  // pool that a request named, and every other pool holds its live bytes only.
  std::uint64_t reserved = 0, reserved_high = 0;
};

using PoolIndex = std::uint8_t;
inline constexpr PoolIndex kNoPool = 255;  // the request names no pool (cudaMalloc)

// Bytes are as requested, unless a comment says otherwise. Not thread-safe: the heap's lock protects it. Nothing
// throws.
class Figures {
 public:
  // Returns the index of `pool` (null: the device's own), which is assigned at the first call; kNoPool: there are too
  // many pools.
  PoolIndex pool_index(CUmemoryPool pool) noexcept {
    const PoolIndex known = find(pool);
    return known != kNoPool ? known : add_pool(pool);
  }

  // Sets CU_MEMPOOL_ATTR_RELEASE_THRESHOLD of a pool, which is 0 at first, as in CUDA.
  void set_release_threshold(CUmemoryPool pool, std::uint64_t bytes) noexcept;
  // The largest threshold of all pools.
  [[nodiscard]] std::uint64_t release_threshold() const noexcept;
  // The handle of the pool with that index.
  [[nodiscard]] CUmemoryPool pool(PoolIndex index) const noexcept { return pools_[index].handle; }

  // The pool was destroyed. CUDA may give its handle to another pool.
  void pool_destroyed(CUmemoryPool pool) noexcept;

  void add_planned(std::uint64_t bytes, PoolIndex pool) noexcept;
  void remove_planned(std::uint64_t bytes, PoolIndex pool) noexcept;
  void add_dynamic(std::uint64_t bytes, PoolIndex pool) noexcept {
    ++live_.dynamic_requests;
    live_.dynamic += bytes;
    served(bytes, pool);
  }
  void remove_dynamic(std::uint64_t bytes, PoolIndex pool) noexcept {
    live_.dynamic -= bytes;
    served_freed(bytes, pool);
  }
  void add_unplanned(std::uint64_t bytes, PoolIndex pool) noexcept;
  void remove_unplanned(std::uint64_t bytes, PoolIndex pool) noexcept;
  void count_refused_slot() noexcept { ++counts_.refused_slots; }
  void count_spare_slot() noexcept { ++counts_.spare_slots; }
  void count_borrow() noexcept { ++counts_.borrows; }
  void count_miss() noexcept {
    ++counts_.misses;
    if (published_ != nullptr) PublishedFigures::set(&published_->misses, counts_.misses);
  }
  void set_physical(std::uint64_t bytes) noexcept;
  // Nothing is live any more: the context in which all of it was has ended.
  void forget_live() noexcept;
  // Besides the live bytes, so many bytes of served requests were freed while work still uses them.
  void count_freed_in_use(std::uint64_t bytes) noexcept {
    counts_.served_in_use_peak = std::max(counts_.served_in_use_peak, live_.served() + bytes);
  }

  // From now on, the figures are also written to `published`, which must outlive this object.
  void publish_in(PublishedFigures* published) noexcept;

  // Live bytes in slots of the plan, and of all requests.
  [[nodiscard]] std::uint64_t planned_live() const noexcept { return live_.planned; }
  [[nodiscard]] std::uint64_t live() const noexcept { return live_.served() + live_.unplanned; }
  // The latest value of `set_physical`.
  [[nodiscard]] std::uint64_t physical() const noexcept { return counts_.physical; }
  // The statistics that are counted here; the others are 0.
  [[nodiscard]] Statistics statistics() const noexcept;
  [[nodiscard]] PoolUse pool_use(CUmemoryPool pool) const noexcept;
  void reset_pool_high(CUmemoryPool pool, bool used, bool reserved) noexcept;

 private:
  struct alignas(64) Pool {
    CUmemoryPool handle = nullptr;
    bool alive = false;      // the program has not destroyed it
    bool published = false;  // published_ is not null; a copy in a cache line that each request uses
    bool known = false;      // a request has named it
    std::uint64_t release_threshold = 0;
    std::uint64_t used = 0, used_high = 0;
    std::uint64_t served = 0;         // of `used`: planned or dynamic
    std::uint64_t reserved_high = 0;  // as of the latest update
  };

  // The counters that a dynamic request and its free change, in one cache line. In bytes, except for the first.
  struct alignas(64) Live {
    std::uint64_t dynamic_requests = 0;
    std::uint64_t dynamic = 0;
    std::uint64_t planned = 0;
    std::uint64_t unplanned = 0;
    std::uint64_t peak = 0;         // high-water mark of all three together
    std::uint64_t served_peak = 0;  // high-water mark of planned and dynamic together
    std::uint64_t pools = 0;        // requests that name a pool, whether served here or by CUDA
    std::uint64_t pools_peak = 0;
    [[nodiscard]] std::uint64_t served() const noexcept { return planned + dynamic; }
  };

  // The index of a pool; kNoPool: it has none.
  [[nodiscard]] PoolIndex find(CUmemoryPool pool) const noexcept {
    std::size_t i = 0;
    do {
      if (pools_[i].alive && pools_[i].handle == pool) return static_cast<PoolIndex>(i);
    } while (++i < pool_count_);
    return kNoPool;
  }
  PoolIndex add_pool(CUmemoryPool pool) noexcept;

  [[nodiscard]] bool is_published(PoolIndex pool) const noexcept {
    return pool == kNoPool ? published_ != nullptr : pools_[pool].published;
  }
  void publish_requests() noexcept;

  void added(std::uint64_t bytes, PoolIndex pool) noexcept {
    live_.served_peak = std::max(live_.served_peak, live_.served());
    live_.peak = std::max(live_.peak, live());
    if (is_published(pool)) publish_requests();
    if (pool == kNoPool) return;
    Pool& named = pools_[pool];
    named.known = true;
    named.used += bytes;
    named.used_high = std::max(named.used_high, named.used);
    live_.pools += bytes;
    live_.pools_peak = std::max(live_.pools_peak, live_.pools);
  }
  void removed(std::uint64_t bytes, PoolIndex pool) noexcept {
    if (is_published(pool)) publish_requests();
    if (pool == kNoPool) return;
    pools_[pool].used -= bytes;
    live_.pools -= bytes;
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

  Live live_;
  Statistics counts_;                      // the statistics that are not in live_
  PublishedFigures* published_ = nullptr;  // null: figures are not published
  std::array<Pool, 64> pools_{};
  std::size_t pool_count_ = 0;
};

}  // namespace stalloc::serve
