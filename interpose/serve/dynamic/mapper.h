// SPDX-License-Identifier: Apache-2.0
// Addresses and physical memory of the dynamic sub-allocator: what calls the driver to create, map and unmap.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "interpose/serve/driver/driver.h"

namespace stalloc::serve {

// A handle, and where in a contiguous range it is mapped or is to be.
struct MappedHandle {
  std::uint64_t bytes = 0;
  CUmemGenericAllocationHandle id = 0;
};

// One reservation: addresses for the home view, then addresses for stitched views. Every function either does all that
// it says or nothing, except for unmapping that the driver refuses: such addresses are not used again. Not thread-safe
// but for `contains`.
class Mapper {
 public:
  // `home_bytes` and `view_bytes` are multiples of the granularity. Nothing on failure; `why` says what was refused.
  // Throws std::bad_alloc only.
  static std::unique_ptr<Mapper> create(Driver& driver, int device, std::uint64_t home_bytes, std::uint64_t view_bytes,
                                        std::string* why);
  // As `close`.
  ~Mapper();
  Mapper(const Mapper&) = delete;
  Mapper& operator=(const Mapper&) = delete;

  // Gives the addresses back. Idempotent; `contains` answers as before. Pre: everything was unmapped; what the driver
  // refused to unmap is tried again.
  void close() noexcept;

  [[nodiscard]] CUdeviceptr home(std::uint64_t offset) const noexcept { return base_ + offset; }
  [[nodiscard]] CUdeviceptr view(std::uint64_t offset) const noexcept { return base_ + home_bytes_ + offset; }
  [[nodiscard]] bool contains(CUdeviceptr address) const noexcept { return address - base_ < reserved_; }

  // Creates a handle for each of `handles` (`bytes` is given, `id` is set) and maps them one behind the other.
  CUresult create_at(CUdeviceptr at, std::span<MappedHandle> handles) noexcept;
  // Maps handles that exist one behind the other.
  CUresult map_at(CUdeviceptr at, std::span<const MappedHandle> handles) noexcept;
  // Pre, of both: no work is pending that may touch the range. False when the driver refused: something is still
  // mapped there.
  bool unmap(CUdeviceptr at, std::span<const MappedHandle> handles) noexcept;
  bool destroy_at(CUdeviceptr at, const MappedHandle& handle) noexcept;

  // `device` may touch everything that is mapped from now on, and, by `renew_access`, a mapped range. False: no host
  // memory to remember it in.
  bool remember_peer(int device) noexcept;
  CUresult renew_access(CUdeviceptr at, std::uint64_t bytes) noexcept;

  [[nodiscard]] std::uint64_t calls() const noexcept { return calls_; }              // create to unmap
  [[nodiscard]] std::uint64_t nanoseconds() const noexcept { return nanoseconds_; }  // spent in them

 private:
  class Timer;
  // A mapping that the driver refused to undo.
  struct FailedUnmap {
    CUdeviceptr at = 0;
    MappedHandle handle;
    bool unowned = false;  // nobody else knows the handle: release it too
  };

  explicit Mapper(Driver& driver) : driver_(driver) {}
  CUresult map_all(CUdeviceptr at, std::span<const MappedHandle> handles) noexcept;
  void release_unused(std::span<const MappedHandle> handles) noexcept;
  void release(CUmemGenericAllocationHandle id) noexcept;
  void remember_failed_unmap(const FailedUnmap& failed) noexcept;
  bool retry_unmaps(CUmemGenericAllocationHandle id) noexcept;

  Driver& driver_;
  int device_ = 0;
  CUdeviceptr base_ = 0;
  std::uint64_t home_bytes_ = 0;
  std::uint64_t reserved_ = 0;
  std::uint64_t calls_ = 0;
  std::uint64_t nanoseconds_ = 0;
  std::vector<int> devices_with_access_;
  std::vector<FailedUnmap> failed_unmaps_;  // still mapped
  bool has_unremembered_ = false;           // something is still mapped that is not in failed_unmaps_
  bool closed_ = false;
};

}  // namespace stalloc::serve
