// Running sums: what is live, what was, by pool. No thread-safety of its own.
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace stalloc::serve {

// All figures since start, in bytes or counts. live counts every request of the program on this device that stalloc
// saw, as requested; physical is what the arena holds.
struct Statistics {
  std::uint64_t physical_bytes = 0;
  std::uint64_t planned_live_bytes = 0;
  std::uint64_t planned_live_peak_bytes = 0;
  std::uint64_t unplanned_live_bytes = 0;
  std::uint64_t live_peak_bytes = 0;  // of planned + unplanned
  std::uint64_t planned_requests = 0;
  std::uint64_t unplanned_requests = 0;
  std::uint64_t unplanned_large_requests = 0;  // of 1 MiB or more
  std::uint64_t refused_slots = 0;             // the slot's bytes were taken, or could not be ordered on the stream
  std::uint64_t resynchronisations = 0;        // jumps of the cursor
  std::uint64_t stream_waits = 0;              // cross-stream orderings made
  std::uint64_t mapping_calls_at_start = 0;    // create, map, set access
  std::uint64_t mapping_calls_after_start = 0;
};

// What a pool of the driver would say of the requests made in its name.
struct PoolUse {
  bool known = false;  // a request named the pool; when none did, the driver alone knows
  // Live requests in the pool's name, as requested, planned and unplanned: the whole answer.
  std::uint64_t used = 0, used_high = 0;
  // The arena's share: what unplanned requests take is to be added from the driver's own answer.
  std::uint64_t reserved = 0, reserved_high = 0;
};

using PoolIndex = std::uint8_t;
inline constexpr PoolIndex kNoPool = 255;  // the request names no pool (cudaMalloc)

class Figures {
 public:
  // The index of `pool` (null: the device's own), given on first sight; kNoPool when there are too many pools.
  PoolIndex pool_index(CUmemoryPool pool) noexcept;

  void planned(std::uint64_t bytes, PoolIndex pool, std::uint64_t physical) noexcept;
  void planned_freed(std::uint64_t bytes, PoolIndex pool) noexcept;
  void unplanned(std::uint64_t bytes, PoolIndex pool) noexcept;
  void unplanned_freed(std::uint64_t bytes, PoolIndex pool) noexcept;
  void slot_refused() noexcept { ++sums_.refused_slots; }
  void physical_is(std::uint64_t bytes) noexcept;

  [[nodiscard]] const Statistics& sums() const noexcept { return sums_; }
  [[nodiscard]] PoolUse pool_use(CUmemoryPool pool) const noexcept;
  void reset_pool_high(CUmemoryPool pool, bool used, bool reserved) noexcept;

 private:
  struct Pool {
    CUmemoryPool handle = nullptr;
    PoolUse use;
  };
  void added(std::uint64_t bytes, PoolIndex pool) noexcept;
  void removed(std::uint64_t bytes, PoolIndex pool) noexcept;
  [[nodiscard]] const Pool* find(CUmemoryPool pool) const noexcept;

  Statistics sums_;
  std::array<Pool, 64> pools_{};
  std::size_t pool_count_ = 0;
};

}  // namespace stalloc::serve
