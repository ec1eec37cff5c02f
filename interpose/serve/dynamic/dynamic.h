// SPDX-License-Identifier: Apache-2.0
// The dynamic sub-allocator of one device, which serves requests without a plan. DESIGN: docs/design.md, "Dynamic".
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "interpose/serve/dynamic/device_backend.h"
#include "interpose/serve/dynamic/heap_options.h"
#include "plan/online/online_allocator.h"

namespace stalloc::plan {
extern template class MappedMemory<serve::DeviceBackend>;
extern template class OnlineAllocator<serve::DeviceBackend>;
}  // namespace stalloc::plan

namespace stalloc::serve {

using plan::Place;

// The online allocator, which decides how requests are served, over the memory of a device. This class adds what only
// the library needs: serving from the plan's arena, and access for peers. The heap's physical offsets (physical.h) in
// [0, planned_bytes) belong to the plan's arena, and later ones to this class. Not thread-safe, except for `contains`:
// the heap's lock protects it. Functions that are not noexcept throw std::bad_alloc.
class Dynamic : public plan::OnlineAllocator<DeviceBackend> {
 public:
  // `driver` and `order` must outlive it. `own_begin` is its first physical offset, `page` the granularity in bytes;
  // `order` has marks for all physical offsets. On failure returns null, and `why` says in one line what was refused.
  static std::unique_ptr<Dynamic> create(Driver& driver, int device, const HeapOptions& options,
                                         std::uint64_t own_begin, std::uint64_t page, StreamOrder* order,
                                         std::string* why);
  ~Dynamic() { close(); }
  Dynamic(const Dynamic&) = delete;
  Dynamic& operator=(const Dynamic&) = delete;

  // Unmaps and releases everything but the addresses. Idempotent. Afterwards, only `contains`, `counts` and the
  // functions that return figures may be called. Pre: no pending work uses the memory.
  void close() noexcept;

  // How many physical offsets a device with `device_bytes` of memory needs.
  static std::uint64_t offset_bytes(std::uint64_t device_bytes, std::uint64_t page);

  [[nodiscard]] bool contains(CUdeviceptr address) const noexcept { return backend().contains(address); }
  // The address of a place.
  [[nodiscard]] CUdeviceptr address_of(Place place) const noexcept { return backend().address(address(place)); }
  // The address of a physical offset in the home view. Pre: it is not the plan's, or the arena was adopted.
  [[nodiscard]] CUdeviceptr home(std::uint64_t at) const noexcept { return backend().home(at); }
  // True for a place on adopted bytes of the plan.
  [[nodiscard]] bool is_of_plan(Place place) const noexcept {
    return place.view == 0 && backend().is_of_plan(place.offset);
  }

  // From now on, the plan's memory can serve dynamic requests. Pass its free bytes to `add_free`. `arena` must outlive
  // this object. Throws std::bad_alloc, and then nothing has changed.
  void adopt(Arena* arena);
  // Adds free bytes of the plan; requests of `stream` get them first. Their frees must be marked in the order already.
  void add_free(PhysicalRanges ranges, StreamOrdinal stream) { placement().give(ranges, stream); }

  // From now on, kernels of `peer` may access this memory, both what is mapped and what will be. Returns the first
  // refusal of the driver; what it does not refuse is accessible all the same.
  CUresult grant_access(int peer) noexcept;

  // As for DeviceBackend.
  void set_limit(std::uint64_t bytes) noexcept { backend().set_limit(bytes); }
  [[nodiscard]] std::uint64_t below_limit() const noexcept { return backend().below_limit(); }

  // The handles by physical offset, including those of an adopted arena.
  [[nodiscard]] const plan::HandlePlacement::Handles& handles() const noexcept { return placement().handles(); }
  // Figures in bytes. The physical memory is its own, without the plan's; the free bytes include those of an adopted
  // arena.
  [[nodiscard]] std::uint64_t physical_bytes() const noexcept { return backend().created_bytes(); }
  // The part of its physical memory in handles for small requests, and the physical offsets of such handles.
  [[nodiscard]] std::uint64_t bytes_for_small() const noexcept { return placement().bytes_for_small(); }
  [[nodiscard]] plan::Range offsets_for_small() const noexcept { return placement().options().small; }
  [[nodiscard]] std::uint64_t free_bytes() const noexcept { return placement().free_bytes(); }
  [[nodiscard]] const plan::FreeSpace& free_space_of_plan() const noexcept { return placement().free_space_of_plan(); }
  [[nodiscard]] std::uint64_t free_plan_bytes() const noexcept { return placement().free_plan_bytes(); }
  [[nodiscard]] std::uint64_t largest_free() const noexcept { return placement().largest_free(); }
  [[nodiscard]] std::size_t views() const noexcept { return placement().views().existing(); }
  [[nodiscard]] const Mapper& mapper() const noexcept { return backend().mapper(); }

 private:
  Dynamic(const Options& options, DeviceBackend backend) : OnlineAllocator(options, std::move(backend)) {}

  void unmap_for_good(std::uint32_t number) noexcept;

  bool closed_ = false;
};

}  // namespace stalloc::serve
