// SPDX-License-Identifier: Apache-2.0
#include "plan/problem.h"

#include <algorithm>

namespace stalloc::plan {

namespace {

// Calls `visit` with the sum of live bytes after each request, until it is above kMostBytes.
template <class Visit>
void visit_live_bytes(const Problem& problem, Visit visit) {
  const std::size_t count = problem.requests.size();
  std::vector<std::uint64_t> freed(count + 1, 0);  // bytes freed just before request i is made
  std::uint64_t live = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const Request& request = problem.requests[i];
    if (request.size > kMostBytes && request.pass == PassReason::None) return visit(kMostBytes + 1);
    live -= freed[i];
    live += request.bytes();
    visit(live);
    if (live > kMostBytes) return;
    if (request.until < count) freed[request.until] += request.bytes();
  }
}

}  // namespace

std::vector<std::uint64_t> live_bytes(const Problem& problem) {
  std::vector<std::uint64_t> all;
  all.reserve(problem.requests.size());
  visit_live_bytes(problem, [&all](std::uint64_t live) { all.push_back(live); });
  return all;
}

std::uint64_t peak_live_bytes(const Problem& problem) {
  std::uint64_t peak = 0;
  visit_live_bytes(problem, [&peak](std::uint64_t live) { peak = std::max(peak, live); });
  return peak;
}

bool fits_a_device(const Problem& problem) {
  const bool each = std::all_of(problem.requests.begin(), problem.requests.end(),
                                [](const Request& request) { return request.size <= kMostBytes; });
  return each && peak_live_bytes(problem) <= kMostBytes;
}

}  // namespace stalloc::plan
