// SPDX-License-Identifier: Apache-2.0
// Running sums of live and past requests, in total and by pool. Not thread-safe.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "interpose/serve/heap/published_figures.h"

namespace stalloc::serve {

// All statistics of a device; statistics.def says what each is.
struct Statistics {
#define STALLOC_STATISTIC(name, unit, place, meaning) std::uint64_t name = 0;
#include "interpose/serve/heap/statistics.def"
#undef STALLOC_STATISTIC
};

// Figures of a pool: what the driver would report for the requests made in its name.
struct PoolUse {
  bool known = false;  // a request named the pool; when none did, the driver alone knows
  // Live requests in the pool's name, as requested, planned and unplanned, and those of them that were served: what
  // CUDA serves is to be added from the driver's own answer.
  std::uint64_t used = 0, used_high = 0, served = 0;
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
  // `bytes` of served requests were freed and are still used, beside what is live.
  void count_freed_in_use(std::uint64_t bytes) noexcept {
    counts_.served_in_use_peak = std::max(counts_.served_in_use_peak, live_.served() + bytes);
  }

  // From now on these figures are kept in `published` too, which must outlive them.
  void publish_in(PublishedFigures* published) noexcept;

  // As requested, in bytes: of the plan's slots, and of all requests.
  [[nodiscard]] std::uint64_t planned_live() const noexcept { return live_.planned; }
  [[nodiscard]] std::uint64_t live() const noexcept { return live_.served() + live_.unplanned; }
  // Physical memory, as `set_physical` said last.
  [[nodiscard]] std::uint64_t physical() const noexcept { return counts_.physical; }
  // All that is counted here; the rest is 0.
  [[nodiscard]] Statistics statistics() const noexcept;
  [[nodiscard]] PoolUse pool_use(CUmemoryPool pool) const noexcept;
  void reset_pool_high(CUmemoryPool pool, bool used, bool reserved) noexcept;

 private:
  struct alignas(64) Pool {
    CUmemoryPool handle = nullptr;
    bool alive = false;      // names a pool of the program
    bool published = false;  // as published_, in a line that the request touches anyway
    bool known = false;      // a request named it
    std::uint64_t release_threshold = 0;
    std::uint64_t used = 0, used_high = 0;
    std::uint64_t served = 0;         // of `used`: planned or dynamic
    std::uint64_t reserved_high = 0;  // as far as it was looked at
  };

  // What a dynamic request and its free change, in one cache line. In bytes, as requested, except for the first.
  struct alignas(64) Live {
    std::uint64_t dynamic_requests = 0;
    std::uint64_t dynamic = 0;
    std::uint64_t planned = 0;
    std::uint64_t unplanned = 0;
    std::uint64_t peak = 0;         // of all three together
    std::uint64_t served_peak = 0;  // of planned and dynamic together
    std::uint64_t pools = 0;        // of requests that name a pool, served here or by CUDA
    std::uint64_t pools_peak = 0;
    [[nodiscard]] std::uint64_t served() const noexcept { return planned + dynamic; }
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
  Statistics counts_;                      // what live_ does not have
  PublishedFigures* published_ = nullptr;  // null: figures are not shown
  std::array<Pool, 64> pools_{};
  std::size_t pool_count_ = 0;
};

}  // namespace stalloc::serve
