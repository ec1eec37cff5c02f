// SPDX-License-Identifier: Apache-2.0
// The program's memory pools: which of them may be served, and for which device.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "interpose/serve/driver/driver_real.h"

namespace stalloc {

// Memory served in a pool's name must be like the pool's own memory: private memory of one device, without a limit. So
// pools with a size limit, pools of shareable or otherwise special memory, and pools that the program did not create
// itself (imported ones) are not served. Thread-safe; never throws: a pool that cannot be noted because host memory is
// exhausted is not served.
class Pools final : public serve::CreatedPools {
 public:
  Pools() noexcept;

  // Instead of a device: the pool is not served.
  static constexpr int kNone = -1;

  // A pool: the device of its memory (kNone: unknown), whether it is served, and whether the program made it.
  struct Known {
    int device = kNone;
    bool served = false;
    bool created = false;
  };

  void created(CUmemoryPool pool, const CUmemPoolProps& properties) noexcept;
  // Call this with the device's default pool as soon as it is known.
  void found_default(CUmemoryPool pool, int device) noexcept;
  // The pool is never served from now on, even if it is a device's default pool.
  void refuse(CUmemoryPool pool) noexcept;
  // Call this before the original function destroys the pool, since its handle may be reused at once. Returns what was
  // known about the pool, for `restore` if the original function fails.
  std::optional<Known> forget(CUmemoryPool pool) noexcept;
  void restore(CUmemoryPool pool, const Known& known) noexcept { set(pool, known); }

  // The pool's device; kNone: it must not be served. Nothing: the pool is unknown.
  [[nodiscard]] std::optional<int> find(CUmemoryPool pool) noexcept;
  // The device that may serve requests from `pool`, or kNone. Lock-free when the thread asked about it before.
  [[nodiscard]] int device_of(CUmemoryPool pool) noexcept;

  // Visits the pools that the program created and that may belong to the device, served or not.
  void each_of(int device, const std::function<void(CUmemoryPool)>& visit) override;

 private:
  void set(CUmemoryPool pool, const Known& known) noexcept;

  std::mutex mutex_;
  std::unordered_map<CUmemoryPool, Known> pools_;
  std::atomic<std::uint64_t> version_;  // of pools_; differs from that of any other object
};

}  // namespace stalloc
