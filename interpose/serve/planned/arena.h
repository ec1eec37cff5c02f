// SPDX-License-Identifier: Apache-2.0
// The memory of a plan: one reservation, its handles, and its views.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "interpose/serve/driver/driver.h"
#include "interpose/serve/physical.h"
#include "plan/plan.h"

namespace stalloc::serve {

// The views lie one after another in the reservation, the home view first. Each is a whole number of pages.
//
//     reservation | home view: h0 h1 h2 h3 | stitched view 1: h3 h1 | stitched view 2: h0 h2 |
//     physical    | h0 h1 h2 h3 |            (see physical.h)
//
// `create` creates and maps everything. Not thread-safe, except for `contains`: the heap's lock protects it.
class Arena {
 public:
  // Creates the memory of a plan, which is not needed afterwards. `driver` must outlive the arena. On failure
  // everything is released, null is returned, and `why` says in one line what was refused. Throws std::bad_alloc. Pre:
  // plan::find_defect finds nothing in `plan`, and a context of its device is current.
  static std::unique_ptr<Arena> create(Driver& driver, const plan::DevicePlan& plan, std::string* why);
  ~Arena();  // calls `close`, and releases the addresses unless something is still mapped there
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Unmaps and releases everything but the addresses. Idempotent. Pre: no pending work uses the memory, and the driver
  // is still loaded.
  void close() noexcept;

  [[nodiscard]] CUdeviceptr address(std::uint32_t view, std::uint64_t offset) const noexcept {
    return views_[view].base + offset;
  }
  // Appends the physical ranges of the bytes [offset, offset + bytes) of a view to `out`, and joins adjacent ones.
  void append_ranges(std::uint32_t view, std::uint64_t offset, std::uint64_t bytes,
                     std::vector<PhysicalRange>* out) const;
  [[nodiscard]] bool contains(CUdeviceptr address) const noexcept { return address - base_ < reserved_; }

  // From now on, kernels of `device` may access every view. Returns the driver's error.
  CUresult grant_access(int device) noexcept;

  // Unmaps one handle from all views and releases it. Returns its bytes. 0: the handle is not held, or the driver
  // refused to unmap it; then it is still held and mapped in the home view, but perhaps not in others. Pre: nothing
  // live is on the handle, and no pending work uses it.
  std::uint64_t release_handle(std::size_t handle) noexcept;
  // False once anything was unmapped. The addresses of views other than the home view must then not be served.
  [[nodiscard]] bool is_whole() const noexcept { return is_whole_; }
  [[nodiscard]] std::size_t handle_count() const noexcept { return handles_.size(); }
  [[nodiscard]] PhysicalRange handle_range(std::size_t handle) const noexcept { return handles_[handle].range; }
  [[nodiscard]] bool is_held(std::size_t handle) const noexcept { return handles_[handle].held; }  // not released
  [[nodiscard]] CUmemGenericAllocationHandle handle_id(std::size_t handle) const noexcept {
    return handles_[handle].id;
  }
  // The handle that contains a physical offset.
  [[nodiscard]] std::size_t handle_at(std::uint64_t byte) const noexcept;

  // The bytes of all handles in the plan, and of those that are held now.
  [[nodiscard]] std::uint64_t planned_bytes() const noexcept { return handles_.back().range.end; }
  [[nodiscard]] std::uint64_t physical_bytes() const noexcept { return physical_bytes_; }
  // How many driver calls created, mapped or unmapped memory.
  [[nodiscard]] std::uint64_t mapping_calls() const noexcept { return mapping_calls_; }

 private:
  struct Handle {
    CUmemGenericAllocationHandle id = 0;
    PhysicalRange range;
    bool held = false;
    bool is_lost = false;  // not held, but the driver has refused to release it
  };
  struct MappedView {
    CUdeviceptr base = 0;
    std::vector<std::uint64_t> starts;   // of each mapped handle, in bytes from base, ascending
    std::vector<std::uint32_t> handles;  // at starts
  };
  struct Mapping {
    CUdeviceptr at = 0;
    std::uint32_t handle = 0;
    bool mapped = false;
  };

  explicit Arena(Driver& driver) : driver_(driver) {}
  void lay_out(const plan::DevicePlan& plan);
  bool acquire(std::string* why);
  bool create_handles(std::string* why);
  bool map_views(std::string* why);
  CUresult set_access() noexcept;
  [[nodiscard]] std::uint64_t size_of(std::uint32_t handle) const noexcept { return handles_[handle].range.bytes(); }
  bool unmap(Mapping& mapping) noexcept;  // false: the driver refused
  void release(Handle& handle) noexcept;

  Driver& driver_;
  int device_ = 0;
  CUdeviceptr base_ = 0;
  std::uint64_t reserved_ = 0;  // bytes; 0 while nothing is reserved
  std::uint64_t total_bytes_ = 0;
  std::uint64_t physical_bytes_ = 0;
  std::uint64_t mapping_calls_ = 0;
  std::vector<Handle> handles_;
  std::vector<MappedView> views_;  // bases relative to the reservation until there is one
  std::vector<Mapping> mappings_;  // by address, without gaps
  std::vector<int> devices_with_access_;
  bool is_whole_ = true;
  bool closed_ = false;
};

}  // namespace stalloc::serve
