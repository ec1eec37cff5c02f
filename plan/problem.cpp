// SPDX-License-Identifier: Apache-2.0
#include "plan/problem.h"

#include <algorithm>

namespace stalloc::plan {

std::uint64_t peak_live_bytes(const Problem& problem) {
  const std::size_t count = problem.requests.size();
  std::vector<std::uint64_t> freed(count + 1, 0);  // bytes freed just before request i is made
  std::uint64_t live = 0;
  std::uint64_t peak = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const Request& request = problem.requests[i];
    if (request.size > kMostBytes && request.pass == PassReason::None) return kMostBytes + 1;
    live -= freed[i];
    live += request.bytes();
    if (live > kMostBytes) return live;
    peak = std::max(peak, live);
    if (request.until < count) freed[request.until] += request.bytes();
  }
  return peak;
}

bool fits_a_device(const Problem& problem) {
  const bool each = std::all_of(problem.requests.begin(), problem.requests.end(),
                                [](const Request& request) { return request.size <= kMostBytes; });
  return each && peak_live_bytes(problem) <= kMostBytes;
}

}  // namespace stalloc::plan
