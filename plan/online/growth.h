// How the dynamic sub-allocator's memory grows: in handles of which size, and when growing is better than stitching.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/online/online_policy.h"

namespace stalloc::plan {

// In bytes.
struct Growth {
  std::uint64_t missing = 0;   // of the request, to be created
  std::uint64_t request = 0;   // all of it
  std::uint64_t held = 0;      // already
  std::uint64_t stranded = 0;  // free, but of no use to the request
  std::uint64_t device = 0;    // all memory of the device; 0: no request is a large part of it
  bool first = false;          // nothing large was freed yet
};

// Sizes, in bytes, of handles that hold what is missing and less than a page more; `page` is a power of two. Pure;
// throws std::bad_alloc.
//
// Mapping costs per handle, and what is lost to memory is lost in handles that are partly used, of which there are
// about as many whatever is held: so their size follows that. Where more is lost already than can be spared, they are
// smaller. Requests that are much larger than any handle get larger ones, and so do all the first: what a program
// allocates first are its parameters, most likely, which stay, and nothing is lost in their handles. A request for a
// large part of the device has the largest: it probes for what can be had, or stays, and the time that mapping takes is
// what counts. The remainder is made of smaller ones.
std::vector<std::uint64_t> new_handle_sizes(const OnlinePolicy& policy, const Growth& growth, std::uint64_t page);

// True for a free after which requests are no longer the first.
bool is_large_free(const OnlinePolicy& policy, std::uint64_t bytes, std::uint64_t page) noexcept;

// Stitching what is free now saves memory only if the program never needs more. While memory grows fast, as in a
// program's first step, it will need more, and what is free will be stitched then, or be used by requests that fit.
class GrowthPace {
 public:
  explicit GrowthPace(const OnlinePolicy& policy) : policy_(policy) {}

  // True when a request, the `request`th, should rather grow than stitch. Call it only for requests that do not fit
  // what is free.
  bool spares_stitching(std::uint64_t request, std::uint64_t held, std::uint64_t free) noexcept;

 private:
  OnlinePolicy policy_;
  std::uint64_t looked_at_ = 0;  // request
  std::uint64_t before_ = 0;     // held at the look before the last one
  std::uint64_t last_ = 0;       // held at the last one
};

}  // namespace stalloc::plan
