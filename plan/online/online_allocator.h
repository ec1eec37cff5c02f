// stalloc without a plan, without a device: for simulations.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "plan/online/growth.h"
#include "plan/online/handle_placement.h"

namespace stalloc::plan {

// Serves requests by the placement of the run time's dynamic sub-allocator (handle_placement.h), trying the
// same things in the same order as interpose/serve/dynamic.cpp does by default, when no free is ever known to be
// complete before another stream wants its bytes. Knows no limits on views, and never gives memory back. Pure.
class OnlineAllocator {
 public:
  struct Counts {
    std::uint64_t handles = 0;     // created
    std::uint64_t views = 0;       // made
    std::uint64_t lengthened = 0;  // times that a view was
    std::uint64_t mapped = 0;      // handles in all views
  };

  explicit OnlineAllocator(const HandlePlacement::Options& options) : placement_(options), pace_(options.policy) {}
  // The run time's options for requests of which at most `live_bytes` live at once. `page` becomes a power of two.
  static HandlePlacement::Options options(std::uint64_t page, std::uint64_t live_bytes);

  // `bytes` is a multiple of kUnitBytes, not 0. Nothing when the line of physical memory is full.
  std::optional<Place> allocate(std::uint64_t bytes, StreamIndex stream);
  void free(Place place, std::uint64_t bytes, StreamIndex stream);

  [[nodiscard]] const HandlePlacement& placement() const { return placement_; }
  [[nodiscard]] const Counts& counts() const { return counts_; }

 private:
  using Reach = HandlePlacement::Reach;

  [[nodiscard]] std::optional<Place> find(std::uint64_t bytes, StreamIndex stream, Reach reach) const;
  std::optional<Place> make(std::uint64_t bytes, StreamIndex stream, Reach reach, bool may_grow, bool may_stitch);
  bool may_spare(std::uint64_t bytes, StreamIndex stream);
  const std::vector<Range>& ranges(Place place, std::uint64_t bytes);
  void enter_last_free();

  struct Block {
    Place place;
    std::uint64_t bytes = 0;  // 0: none
    StreamIndex stream = 0;
  };

  HandlePlacement placement_;
  GrowthPace pace_;
  Block last_free_;  // not in the placement yet
  std::uint64_t requests_ = 0;
  std::vector<std::uint32_t> spared_;  // by stream: pages grown for, instead of waiting
  std::vector<Range> ranges_;
  Counts counts_;
};

}  // namespace stalloc::plan
