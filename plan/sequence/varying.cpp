// SPDX-License-Identifier: Apache-2.0
#include "plan/sequence/varying.h"

#include <algorithm>
#include <unordered_map>

namespace stalloc::plan {
namespace {

// The number of call sites that identify a place in the program: a single one may make both requests that vary and
// requests that do not.
constexpr std::size_t kSites = 8;

// Returns for each request a hash of its own call site and of those of the requests before it, `sites` in all.
std::vector<std::uint64_t> find_places(const std::vector<Request>& requests, std::size_t sites) {
  std::vector<std::uint64_t> places;
  places.reserve(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    std::uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a over words
    for (std::size_t at = i - std::min(i, sites - 1); at <= i; ++at) {
      for (const std::uint32_t word : {requests[at].module, requests[at].stack, requests[at].stream}) {
        hash = (hash ^ word) * 0x100000001b3ULL;
      }
    }
    places.push_back(hash);
  }
  return places;
}

// The places in the program at which the body makes requests, each with the largest size of those requests that vary; 0
// if none varies.
class Places {
 public:
  Places(const Problem& problem, const SteadyState& steady, std::size_t sites)
      : places_(find_places(problem.requests, sites)) {
    for (std::size_t i = 0; i < steady.sizes.size(); ++i) {
      std::uint64_t& largest = largest_[places_[steady.begin + i]];
      if (steady.sizes[i].vary()) largest = std::max(largest, steady.sizes[i].largest);
    }
  }

  // Returns the largest size at the place of a request; null if the body makes no request there.
  [[nodiscard]] const std::uint64_t* largest_at(std::size_t request) const {
    const auto at = largest_.find(places_[request]);
    return at == largest_.end() ? nullptr : &at->second;
  }

 private:
  std::vector<std::uint64_t> places_;  // of each request
  std::unordered_map<std::uint64_t, std::uint64_t> largest_;
};

}  // namespace

std::vector<std::uint64_t> find_varying(const Problem& problem, const SteadyState& steady) {
  const Places near(problem, steady, kSites);
  const Places alone(problem, steady, 1);
  const std::size_t body = steady.sizes.size();
  const std::size_t before = (steady.begin - steady.run_begin + body - 1) / body * body;  // whole bodies
  std::vector<std::uint64_t> largest(problem.requests.size(), 0);
  for (std::size_t i = 0; i < largest.size(); ++i) {
    const bool repeats = i >= steady.run_begin && i < steady.run_end;
    const Sizes* sizes = repeats ? &steady.sizes[(i + before - steady.begin) % body] : nullptr;
    if (sizes != nullptr && sizes->vary()) {
      largest[i] = sizes->largest;
      continue;
    }
    const std::uint64_t* there = near.largest_at(i);
    if (there == nullptr) there = alone.largest_at(i);
    if (there != nullptr && *there != 0) largest[i] = std::max(*there, problem.requests[i].size);
  }
  return largest;
}

}  // namespace stalloc::plan
