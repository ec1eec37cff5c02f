// SPDX-License-Identifier: Apache-2.0
// The program's memory pools: which of them may be served, of which device, and which is a device's current one.
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

// What is served in a pool's name must be what the pool would give: private memory of one device, as much as there is.
// So pools with a size limit, pools of shareable or otherwise special memory, and pools that the program did not create
// itself (imported ones) are not served. A pool may be refused later on: what was served before stays in its figures.
// Thread-safe; never throws: a pool that cannot be noted for want of host memory is not served.
class Pools final : public serve::CreatedPools {
 public:
  Pools() noexcept;

  // No device: not to be served.
  static constexpr int kNone = -1;

  void created(CUmemoryPool pool, const CUmemPoolProps& properties) noexcept;
  // A pool that is the device's own, as soon as it is known.
  void found_default(CUmemoryPool pool, int device) noexcept;
  // No request is served from now on, also where the pool is a device's own.
  void refuse(CUmemoryPool pool) noexcept;
  // Call before the original function destroys the pool, since its handle may be reused at once: nobody is given the
  // pool until `ended` tells whether it was destroyed. That returns true where it was, unless the handle is already
  // another pool's.
  void ends(CUmemoryPool pool) noexcept;
  bool ended(CUmemoryPool pool, bool destroyed) noexcept;

  // What is known of the pool: nothing, kNone, or its device.
  [[nodiscard]] std::optional<int> find(CUmemoryPool pool) noexcept;
  // The device that may serve requests from `pool`, or kNone. Lock-free when the thread asked about it before.
  [[nodiscard]] int device_of(CUmemoryPool pool) noexcept;
  // The device on which requests from `pool` are or were served, or kNone: also of a pool that was refused.
  [[nodiscard]] int counted_on(CUmemoryPool pool) noexcept;

  // Those that the program made and that may be of the device, served or not.
  void each_of(int device, const std::function<void(CUmemoryPool)>& visit) override;

 private:
  struct Known {
    int device = kNone;    // of its memory; kNone: unknown
    bool counted = false;  // requests from it may have been served
    bool served = false;   // and still are
    bool created = false;  // by the program
    bool ending = false;   // between `ends` and `ended`
  };

  void set(CUmemoryPool pool, const Known& known) noexcept;

  std::mutex mutex_;
  std::unordered_map<CUmemoryPool, Known> pools_;
  std::atomic<std::uint64_t> version_;  // of pools_; differs from that of any other object
};

}  // namespace stalloc
