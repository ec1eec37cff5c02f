// SPDX-License-Identifier: Apache-2.0
// The addresses and the physical memory of the dynamic sub-allocator: creates, maps and unmaps handles by the driver.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "interpose/serve/driver/driver.h"

namespace stalloc::serve {

// A handle in a contiguous range of addresses. Handles in a list are mapped one after another.
struct MappedHandle {
  std::uint64_t bytes = 0;
  CUmemGenericAllocationHandle id = 0;
};

// One reservation: addresses for the home view, then addresses for stitched views. Every function does everything that
// it says or nothing, except when the driver refuses to unmap or to release. Nothing is mapped over what is then still
// mapped, and while memory is lost that has no owner any more, none is created: otherwise each attempt could lose more.
// Not thread-safe, except for `contains`: the heap's lock protects it. Only `create` throws.
class Mapper {
 public:
  // Reserves the addresses. `home_bytes` and `view_bytes` are multiples of the granularity; `driver` must outlive the
  // mapper. On failure returns null, and `why` says what the driver refused. Throws std::bad_alloc.
  static std::unique_ptr<Mapper> create(Driver& driver, int device, std::uint64_t home_bytes, std::uint64_t view_bytes,
                                        std::string* why);
  ~Mapper();  // calls `close`, and releases the addresses unless something is still mapped
  Mapper(const Mapper&) = delete;
  Mapper& operator=(const Mapper&) = delete;

  // Tries again to unmap and release what the driver refused to. The addresses stay reserved. Idempotent. Pre:
  // everything was unmapped.
  void close() noexcept;

  [[nodiscard]] CUdeviceptr home(std::uint64_t offset) const noexcept { return base_ + offset; }
  [[nodiscard]] CUdeviceptr view(std::uint64_t offset) const noexcept { return base_ + home_bytes_ + offset; }
  [[nodiscard]] bool contains(CUdeviceptr address) const noexcept { return address - base_ < reserved_; }

  // Creates a handle for each element (`bytes` is given, `id` is set) and maps them one after another.
  CUresult create_at(CUdeviceptr at, std::span<MappedHandle> handles) noexcept;
  // Maps existing handles one after another.
  CUresult map_at(CUdeviceptr at, std::span<const MappedHandle> handles) noexcept;
  // `unmap` unmaps handles; `destroy_at` unmaps and releases one. False if the driver refused: something is still
  // mapped there. Pre of both: no pending work uses the range.
  bool unmap(CUdeviceptr at, std::span<const MappedHandle> handles) noexcept;
  bool destroy_at(CUdeviceptr at, const MappedHandle& handle) noexcept;
  // Tries again to unmap a handle where the driver refused it before. False if it is still mapped at such a place.
  bool retry_unmaps_of(CUmemGenericAllocationHandle id) noexcept;
  // False if something is still mapped there that the driver refused to unmap.
  [[nodiscard]] bool is_vacant(CUdeviceptr at, std::uint64_t bytes) const noexcept;

  // `remember_peer` lets `device` access everything that is mapped from now on; false: host memory is missing.
  // `renew_access` applies this to a range that is mapped already.
  bool remember_peer(int device) noexcept;
  CUresult renew_access(CUdeviceptr at, std::uint64_t bytes) noexcept;

  // The driver calls that create, map, unmap and release, and the time spent in them.
  [[nodiscard]] std::uint64_t calls() const noexcept { return calls_; }
  [[nodiscard]] std::uint64_t nanoseconds() const noexcept { return nanoseconds_; }

 private:
  class Timer;
  // A mapping that the driver refused to undo.
  struct FailedUnmap {
    CUdeviceptr at = 0;
    MappedHandle handle;
    bool unowned = false;  // the handle has no other owner and must be released, too
  };

  explicit Mapper(Driver& driver) : driver_(driver) {}
  CUresult map_all(CUdeviceptr at, std::span<const MappedHandle> handles) noexcept;
  bool unmap_all(CUdeviceptr at, std::span<const MappedHandle> handles) noexcept;
  bool unmap_one(CUdeviceptr at, std::uint64_t bytes) noexcept;
  bool give_back_lost() noexcept;
  void release_unused(std::span<const MappedHandle> handles) noexcept;
  void release(CUmemGenericAllocationHandle id) noexcept;
  bool make_room(std::size_t more) noexcept;
  template <class IsMeant>
  bool retry_unmaps(IsMeant is_meant) noexcept;

  Driver& driver_;
  int device_ = 0;
  CUdeviceptr base_ = 0;
  std::uint64_t home_bytes_ = 0;
  std::uint64_t reserved_ = 0;
  std::uint64_t calls_ = 0;
  std::uint64_t nanoseconds_ = 0;
  std::vector<int> devices_with_access_;
  std::size_t mapped_ = 0;                  // handles, each as often as it is mapped
  std::vector<FailedUnmap> failed_unmaps_;  // still mapped; has room for everything that is mapped
  std::vector<CUmemGenericAllocationHandle> failed_releases_;
};

}  // namespace stalloc::serve
