// SPDX-License-Identifier: Apache-2.0
// The sizes of the handles in which the dynamic sub-allocator's memory grows.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/online/online_policy.h"

namespace stalloc::plan {

// What the sizes of new handles depend on, in bytes.
struct Growth {
  std::uint64_t missing = 0;               // bytes of the request that must be created
  std::uint64_t request = 0;               // bytes of the whole request
  std::uint64_t held = 0;                  // held already
  std::uint64_t most_held = 0;             // the most that was ever held
  std::uint64_t room = ~std::uint64_t{0};  // what can still be created
  std::uint64_t coarseness = 1;            // a factor (MappingBudget), not bytes
  bool stitching_overdrawn = false;        // stitching alone has cost more than mapping may
};

// Sizes, in bytes, of handles that hold what is missing and less than a page more; `page` is a power of two. Pure;
// throws std::bad_alloc.
//
// Mapping costs per handle. Memory is lost in handles that are partly used, and there are about as many of those
// whatever is held, so the size of new handles follows what is held. It follows the request, too, since few large
// requests are live at once, and a large part of the device may be asked for only to find out what can be had. Where
// mapping has cost more than it may, handles are larger, and the last one may then hold more than is missing. The
// remainder is made of smaller handles. Larger handles spare a program that creates its memory again and again as many
// calls as they are fewer; one that stitches it is spared more, so it may have handles twice as large. Where the device
// is nearly full, memory that is lost decides what a program can do, so handles are small then, but for large requests.
// A program that would stitch forever is excepted, since it would be nothing but slow.
std::vector<std::uint64_t> new_handle_sizes(const OnlinePolicy& policy, const Growth& growth, std::uint64_t page);

}  // namespace stalloc::plan
