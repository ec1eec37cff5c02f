// The plan's side of a heap: its memory, its slots, who owns which of its bytes.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "interpose/serve/planned/arena.h"
#include "interpose/serve/planned/cursors.h"
#include "interpose/serve/planned/occupancy.h"
#include "plan/plan.h"

namespace stalloc::serve {

// Not thread-safe: the heap's lock covers it, but for `contains`. Nothing but `create` and the constructor throws.
class Planned {
 public:
  // As Arena::create.
  static std::unique_ptr<Planned> create(Driver& driver, const plan::DevicePlan& plan, std::string* why);

  [[nodiscard]] Cursors& cursors() noexcept { return cursors_; }
  [[nodiscard]] const Cursors& cursors() const noexcept { return cursors_; }
  [[nodiscard]] Arena& arena() noexcept { return *arena_; }
  [[nodiscard]] const Arena& arena() const noexcept { return *arena_; }
  [[nodiscard]] Occupancy& occupancy() noexcept { return occupancy_; }
  [[nodiscard]] std::uint64_t page() const noexcept { return page_; }
  [[nodiscard]] bool contains(CUdeviceptr address) const noexcept { return arena_->contains(address); }

  [[nodiscard]] CUdeviceptr address(std::uint32_t slot) const noexcept { return places_[slot].address; }
  [[nodiscard]] bool event_on_free(std::uint32_t slot) const noexcept { return places_[slot].event_on_free; }
  [[nodiscard]] PhysicalRanges ranges(std::uint32_t slot) const noexcept {
    return {&ranges_[places_[slot].first_range], places_[slot].range_count};
  }

 private:
  // A slot with its place worked out.
  struct Place {
    CUdeviceptr address = 0;
    std::uint32_t first_range = 0;
    std::uint32_t range_count = 0;
    bool event_on_free = false;
  };

  Planned(const plan::DevicePlan& plan, std::unique_ptr<Arena> arena);

  std::unique_ptr<Arena> arena_;
  std::uint64_t page_;
  std::vector<Place> places_;
  std::vector<PhysicalRange> ranges_;
  Cursors cursors_;
  Occupancy occupancy_;
};

}  // namespace stalloc::serve
