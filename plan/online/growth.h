// SPDX-License-Identifier: Apache-2.0
// The sizes of new handles of the dynamic sub-allocator.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/online/online_policy.h"

namespace stalloc::plan {

// The inputs for the sizes of new handles, in bytes.
struct Growth {
  std::uint64_t missing = 0;               // bytes of the request that must be created
  std::uint64_t request = 0;               // bytes of the whole request
  std::uint64_t held = 0;                  // held already
  std::uint64_t most_held = 0;             // the most that was ever held
  std::uint64_t room = ~std::uint64_t{0};  // what can still be created
  std::uint64_t coarseness = 1;            // a factor (Overdraft), not bytes
  std::uint64_t bound = 1;                 // the same: how many times higher the bound on larger handles is
  bool stitching_overdrawn = false;        // stitching alone has cost more than mapping may
};

// Returns the sizes, in bytes, of handles for the missing bytes and less than a page more; `page` is a power of two.
// Pure; throws std::bad_alloc.
//
// The cost of mapping follows the number of handles. Memory is lost in partly used handles, whose number hardly depends
// on how much is held, so the size of new handles follows what is held. It also follows the request, since few large
// requests are live at the same time, and a program may request a large part of the device only to find out how much is
// available. Sizes are powers of two, and the remainder is made of smaller handles: what is left of a handle beside one
// request is then more often what another one needs.
//
// Where mapping has exceeded its budget, handles are larger, up to a share of what was held or of the request, if that
// is more: a request of hundreds of handles takes long to map, and loses little in a few larger ones. Where the device
// is nearly full, lost memory limits what a program can do, so handles are small there, except for large requests. This
// does not apply once stitching is overdrawn, since small handles would make such a program only slower.
std::vector<std::uint64_t> new_handle_sizes(const OnlinePolicy& policy, const Growth& growth, std::uint64_t page);

}  // namespace stalloc::plan
