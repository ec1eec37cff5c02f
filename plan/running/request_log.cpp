// SPDX-License-Identifier: Apache-2.0
#include "plan/running/request_log.h"

#include <algorithm>

#include "plan/online/online_backend.h"

namespace stalloc::plan {

Problem RequestLog::problem(std::size_t begin, std::uint64_t page) const {
  Problem problem;
  problem.granularity = page;
  problem.repeats = true;
  problem.requests.reserve(requests_.size() - begin);
  for (std::size_t i = begin; i < requests_.size(); ++i) {
    Request request;
    request.id = request.lower = i - begin;
    request.size = std::uint64_t{sizes_[i]} * kUnitBytes;
    request.stream = request.allocation_stream = request.free_stream = requests_[i].stream;
    request.upper = kNever;
    problem.requests.push_back(request);
  }
  for (const LoggedFree& free : frees_) {
    // Of several requests with the number the last: the others were refused.
    auto freed = std::ranges::upper_bound(requests_, free.number, {}, &LoggedRequest::number);
    if (freed == requests_.begin() || (--freed)->number != free.number) continue;
    const auto index = static_cast<std::size_t>(freed - requests_.begin());
    if (index < begin) continue;
    Request& request = problem.requests[index - begin];
    request.until = request.upper = free.until - begin;
    request.free_stream = free.stream == kAnyStream ? kEveryStream : free.stream;
  }
  return problem;
}

}  // namespace stalloc::plan
