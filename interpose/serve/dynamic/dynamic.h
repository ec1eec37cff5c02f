// SPDX-License-Identifier: Apache-2.0
// The dynamic sub-allocator of one device: serves what no plan covers. DESIGN: docs/design.md, "Serving", "Dynamic".
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
extern template class OnlineAllocator<serve::DeviceBackend>;
}  // namespace stalloc::plan

namespace stalloc::serve {

using plan::Place;

// The online allocator, which decides how requests are served, over a device's memory, and what only the run time does:
// serving from the plan's arena, letting peers in. Of the heap's physical offsets (physical.h) [0, planned_bytes)
// belong to the plan's arena, those behind to this class. Not thread-safe: the heap's lock covers it, except for
// `contains`. Throws std::bad_alloc.
class Dynamic : public plan::OnlineAllocator<DeviceBackend> {
 public:
  // `order` must outlive it and know all physical offsets. Nothing on failure, and `why` says in one line what was
  // refused.
  static std::unique_ptr<Dynamic> create(Driver& driver, int device, const HeapOptions& options,
                                         std::uint64_t own_begin, std::uint64_t page, StreamOrder* order,
                                         std::string* why);
  // As `close`.
  ~Dynamic() { close(); }
  Dynamic(const Dynamic&) = delete;
  Dynamic& operator=(const Dynamic&) = delete;

  // Unmaps and gives back all of it. Idempotent; nothing but `contains`, `counts` and the figures may be asked
  // afterwards. Pre: no work is pending that may touch it.
  void close() noexcept;

  // How many physical offsets a device with `device_bytes` of memory needs.
  static std::uint64_t offset_bytes(std::uint64_t device_bytes, std::uint64_t page);

  [[nodiscard]] bool contains(CUdeviceptr address) const noexcept { return backend().contains(address); }
  // The address of a place.
  [[nodiscard]] CUdeviceptr address_of(Place place) const noexcept { return backend().address(address(place)); }
  // The home address of a physical offset. Pre: it is not the plan's, or those were adopted.
  [[nodiscard]] CUdeviceptr home(std::uint64_t at) const noexcept { return backend().home(at); }
  // True for a place on adopted bytes of the plan.
  [[nodiscard]] bool is_of_plan(Place place) const noexcept {
    return place.view == 0 && backend().is_of_plan(place.offset);
  }

  // The plan's memory serves dynamic requests from now on. Its free bytes come by `give`.
  void adopt(Arena* arena);
  // These bytes of the plan are free, behind the work of `stream`. The order between streams must know of it already.
  void add_free(PhysicalRanges ranges, StreamOrdinal stream) { placement().give(ranges, stream); }

  // Kernels of `peer` may touch this memory from now on, what is mapped and what will be.
  CUresult grant_access(int peer) noexcept;

  // From now on no memory is created beyond `bytes` held in total.
  void set_limit(std::uint64_t bytes) noexcept { backend().set_limit(bytes); }
  [[nodiscard]] std::uint64_t below_limit() const noexcept { return backend().below_limit(); }

  // The handles at home, by physical offset: the plan's too once they were adopted.
  [[nodiscard]] const plan::HandlePlacement::Handles& handles() const noexcept { return placement().handles(); }
  // Of its own, without the plan's; the others with those, once they were adopted. In bytes.
  [[nodiscard]] std::uint64_t physical_bytes() const noexcept { return backend().created_bytes(); }
  // Of that, in handles for small requests.
  [[nodiscard]] std::uint64_t bytes_for_small() const noexcept { return placement().bytes_for_small(); }
  [[nodiscard]] plan::Range offsets_for_small() const noexcept { return placement().options().small; }
  [[nodiscard]] std::uint64_t free_bytes() const noexcept { return placement().free_bytes(); }
  [[nodiscard]] std::uint64_t free_plan_bytes() const noexcept { return placement().free_plan_bytes(); }
  [[nodiscard]] std::uint64_t largest_free() const noexcept { return placement().largest_free(); }
  [[nodiscard]] std::size_t views() const noexcept { return placement().views().count(); }
  [[nodiscard]] const Mapper& mapper() const noexcept { return backend().mapper(); }

 private:
  Dynamic(const Options& options, DeviceBackend backend) : OnlineAllocator(options, std::move(backend)) {}

  void unmap_all();

  bool closed_ = false;
};

}  // namespace stalloc::serve
