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
// itself (imported ones) are not served. A pool may be refused later on: memory served before stays in its figures.
// Thread-safe; never throws: a pool that cannot be noted because host memory is exhausted is not served.
class Pools final : public serve::CreatedPools {
 public:
  Pools() noexcept;

  // Instead of a device: the pool is not served.
  static constexpr int kNone = -1;

  void add_created(CUmemoryPool pool, const CUmemPoolProps& properties) noexcept;
  // Call this with the device's default pool as soon as it is known.
  void add_default(CUmemoryPool pool, int device) noexcept;
  // The pool is never served from now on, even if it is a device's default pool.
  void refuse(CUmemoryPool pool) noexcept;
  // Call this before the original function destroys the pool, since its handle may be reused at once. The pool is not
  // found from then on. Call `end_destroy` when it is known whether the pool was destroyed. It returns true if so,
  // unless the handle belongs to another pool already.
  void begin_destroy(CUmemoryPool pool) noexcept;
  bool end_destroy(CUmemoryPool pool, bool destroyed) noexcept;

  // The pool's device; kNone: it must not be served. Nothing: the pool is unknown.
  [[nodiscard]] std::optional<int> find(CUmemoryPool pool) noexcept;
  // The device that may serve requests from `pool`, or kNone. Lock-free when the thread has asked about it before.
  [[nodiscard]] int device_of(CUmemoryPool pool) noexcept;
  // The device on which requests from `pool` are or were served, or kNone: also of a pool that was refused.
  [[nodiscard]] int counting_device(CUmemoryPool pool) noexcept;

  // Visits the pools that the program created and that may belong to the device, served or not.
  void each_of(int device, const std::function<void(CUmemoryPool)>& visit) override;

 private:
  struct Known {
    int device = kNone;    // of its memory; kNone: unknown
    bool counted = false;  // requests from it may have been served
    bool served = false;   // and still are
    bool created = false;  // by the program
    bool ending = false;   // between `begin_destroy` and `end_destroy`
  };

  void set(CUmemoryPool pool, const Known& known) noexcept;

  std::mutex mutex_;
  std::unordered_map<CUmemoryPool, Known> pools_;
  std::atomic<std::uint64_t> version_;  // of pools_; differs from that of any other object
};

}  // namespace stalloc
