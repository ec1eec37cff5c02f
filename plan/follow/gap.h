// SPDX-License-Identifier: Apache-2.0
// Where a request goes whose slot is taken.
#pragma once

#include <cstdint>
#include <optional>

#include "plan/placement/free_space.h"
#include "plan/placement/range.h"

namespace stalloc::plan {

// Finds gaps in a plan: free bytes in which none of the following slots begins before a request is freed. In other
// bytes the request would displace that slot's own request, which would displace another, and so on.
//
// A search looks at each slot that begins while the request lives. So that a program that follows its plan badly does
// not search all the time, all searches together may look at a first number of slots, and at some more for each request
// so far. A search that might exceed this is not made. Not thread-safe.
class GapFinder {
 public:
  // Call this for each request.
  void note_request() noexcept { ++requests_; }

  // Whether a search is made for a request that is freed `lives` requests later.
  [[nodiscard]] bool may_search(std::uint64_t lives) const noexcept {
    return lives <= kFirstSlots + requests_ * kSlotsPerRequest - searched_;
  }
  // Returns `bytes` of the smallest part of `free` that is large enough; nothing if there is none or no search is made.
  // ranges_of(n) returns the ranges of the n-th slot that follows. Throws std::bad_alloc.
  template <class RangesOf>
  std::optional<Range> find(FreeSpace free, std::uint64_t bytes, std::uint64_t lives, RangesOf ranges_of) {
    if (!may_search(lives)) return std::nullopt;
    for (std::uint64_t later = 1; later < lives && free.largest() >= bytes; ++later) {
      for (const Range& range : ranges_of(later)) free.subtract(range);
      ++searched_;
    }
    const auto fit = free.best_fit(bytes);
    return fit ? std::optional(Range{fit->begin, fit->begin + bytes}) : std::nullopt;
  }

 private:
  // Without a limit, searches take 0.4 us for each request of the 55 runs of docs/benchmarks/real-run/gaps.txt, which
  // have late or missing requests.
  static constexpr std::uint64_t kFirstSlots = 1 << 18;
  static constexpr std::uint64_t kSlotsPerRequest = 64;

  std::uint64_t requests_ = 0;  // so far
  std::uint64_t searched_ = 0;  // slots that were looked at: at most kFirstSlots + requests_ * kSlotsPerRequest
};

}  // namespace stalloc::plan
