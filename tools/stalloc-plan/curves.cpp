// SPDX-License-Identifier: Apache-2.0
#include "tools/stalloc-plan/curves.h"

#include <algorithm>
#include <limits>

namespace stalloc::tool {

Curves::Curves(const plan::Problem& problem) : requests_(problem.requests.size()) {
  const std::size_t points = std::min(requests_, kMostPoints);
  for (std::size_t p = 0; p < points; ++p) first_.push_back((p * requests_ + points - 1) / points);
  live_least_.assign(points, std::numeric_limits<std::uint64_t>::max());
  live_most_.assign(points, 0);
  for (auto& held : held_) held.assign(points, 0);
  std::vector<std::uint64_t> freed(requests_ + 1);  // bytes given back before each request
  std::uint64_t live = 0;
  for (std::size_t i = 0; i < requests_; ++i) {
    const plan::Request& request = problem.requests[i];
    if (request.until < requests_) freed[request.until] += request.bytes();
    live -= freed[i];
    const std::size_t p = point_of(i);
    live_least_[p] = std::min(live_least_[p], live);
    live += request.bytes();
    live_most_[p] = std::max(live_most_[p], live);
  }
}

// The last point whose first request is not behind `request`.
std::size_t Curves::point_of(std::size_t request) const { return request * first_.size() / requests_; }

void Curves::add(std::size_t allocator, std::size_t request, std::uint64_t held_bytes) {
  std::uint64_t& most = held_[allocator][point_of(request)];
  most = std::max(most, held_bytes);
}

void Curves::write(JsonWriter& json) const {
  const auto object = json.object("curves");
  json.column("first", first_);
  json.column("live_least", live_least_);
  json.column("live_most", live_most_);
  for (std::size_t i = 0; i < kAllocators.size(); ++i) json.column(kAllocators[i].key, held_[i]);
}

}  // namespace stalloc::tool
