// SPDX-License-Identifier: Apache-2.0
// The memory a plan asks for: one reservation, its handles, its views.
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

// Views lie one behind the other in the reservation, the home view first; each is a whole number of pages.
//
//     reservation | home view: h0 h1 h2 h3 | stitched view 1: h3 h1 | stitched view 2: h0 h2 |
//     physical    | h0 h1 h2 h3 |            (see physical.h)
//
// Everything is created and mapped by `create`. Not thread-safe except for `contains`.
class Arena {
 public:
  // Pre: plan::find_defect finds nothing in `plan`, and a context of its device is current. On failure everything is
  // given back, nothing is returned, and `why` says in one line what was refused. Throws std::bad_alloc only.
  static std::unique_ptr<Arena> create(Driver& driver, const plan::DevicePlan& plan, std::string* why);
  // As `close`.
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Unmaps and gives back all of it. Idempotent; `contains` answers as before. Pre: no work is pending that may touch
  // it, and the driver is still there.
  void close() noexcept;

  [[nodiscard]] CUdeviceptr address(std::uint32_t view, std::uint64_t offset) const noexcept {
    return views_[view].base + offset;
  }
  // Appends the physical ranges behind bytes [offset, offset + bytes) of a view to `out`, neighbours joined.
  void append_ranges(std::uint32_t view, std::uint64_t offset, std::uint64_t bytes,
                     std::vector<PhysicalRange>* out) const;
  [[nodiscard]] bool contains(CUdeviceptr address) const noexcept { return address - base_ < reserved_; }

  // Lets kernels of `device` use every view from now on.
  CUresult grant_access(int device) noexcept;

  // Unmaps one handle everywhere and releases it; 0 when the driver refuses or it is gone, else the bytes given back.
  // Pre: nothing lives on it and no work is pending that may touch it. The handle's addresses must not be served again.
  std::uint64_t release_handle(std::size_t handle) noexcept;
  [[nodiscard]] std::size_t handle_count() const noexcept { return handles_.size(); }
  [[nodiscard]] PhysicalRange handle_range(std::size_t handle) const noexcept { return handles_[handle].range; }
  [[nodiscard]] bool is_held(std::size_t handle) const noexcept { return handles_[handle].held; }  // not given back
  [[nodiscard]] CUmemGenericAllocationHandle handle_id(std::size_t handle) const noexcept {
    return handles_[handle].id;
  }
  // The handle that holds a physical byte.
  [[nodiscard]] std::size_t handle_at(std::uint64_t byte) const noexcept;

  [[nodiscard]] std::uint64_t planned_bytes() const noexcept { return handles_.back().range.end; }  // as the plan says
  [[nodiscard]] std::uint64_t physical_bytes() const noexcept { return physical_bytes_; }           // held now
  [[nodiscard]] std::uint64_t mapping_calls() const noexcept { return mapping_calls_; }             // create to unmap

 private:
  struct Handle {
    CUmemGenericAllocationHandle id = 0;
    PhysicalRange range;
    bool held = false;
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
  [[nodiscard]] std::uint64_t size_of(std::uint32_t handle) const noexcept {
    return handles_[handle].range.end - handles_[handle].range.begin;
  }
  void unmap(Mapping& mapping) noexcept;
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
  bool closed_ = false;
};

}  // namespace stalloc::serve
