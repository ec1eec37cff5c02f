// How the dynamic sub-allocator's memory grows: in handles of which size.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/online/online_policy.h"

namespace stalloc::plan {

// In bytes.
struct Growth {
  std::uint64_t missing = 0;     // of the request, to be created
  std::uint64_t request = 0;     // all of it
  std::uint64_t held = 0;        // already
  std::uint64_t most_held = 0;   // ever
  std::uint64_t device = 0;      // all memory of the device; 0: no request is a large part of it
  std::uint64_t coarseness = 1;  // not in bytes: MappingBudget's
};

// Sizes, in bytes, of handles that hold what is missing and less than a page more; `page` is a power of two. Pure;
// throws std::bad_alloc.
//
// Mapping costs per handle, and what is lost to memory is lost in handles that are partly used, of which there are
// about as many whatever is held: so their size follows that. Where mapping has cost more than it may, they are larger,
// and the last one may then hold more than is missing. A request for a large part of the device has the largest: it
// probes for what can be had, or stays, and the time that mapping takes is what counts. The remainder is made of
// smaller ones.
std::vector<std::uint64_t> new_handle_sizes(const OnlinePolicy& policy, const Growth& growth, std::uint64_t page);

}  // namespace stalloc::plan
