// SPDX-License-Identifier: Apache-2.0
#include "plan/successive_threads.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

namespace stalloc::plan {
namespace {

using Requests = std::vector<std::size_t>;

auto key_of(const Request& request) {
  const std::uint64_t what = request.stack != 0 ? request.stack : round_up(request.size, kUnitBytes);
  return std::tuple(request.stack != 0, request.module, what, request.stream, request.allocation_stream);
}

}  // namespace

void merge_successive_threads(Problem& problem) {
  std::map<std::uint32_t, Requests> by_thread;
  for (std::size_t i = 0; i < problem.requests.size(); ++i) by_thread[problem.requests[i].thread].push_back(i);
  std::vector<const Requests*> threads;  // by their first request
  threads.reserve(by_thread.size());
  for (const auto& [thread, requests] : by_thread) threads.push_back(&requests);
  std::sort(threads.begin(), threads.end(),
            [](const Requests* a, const Requests* b) { return a->front() < b->front(); });
  std::vector<const Requests*> latest;  // of those that are one
  for (const Requests* next : threads) {
    const auto same = [&](std::size_t a, std::size_t b) {
      return key_of(problem.requests[a]) == key_of(problem.requests[b]);
    };
    const auto before = std::find_if(latest.begin(), latest.end(), [&](const Requests* last) {
      return last->back() < next->front() && last->size() == next->size() &&
             std::equal(last->begin(), last->end(), next->begin(), same);
    });
    if (before == latest.end()) {
      latest.push_back(next);
      continue;
    }
    const std::uint32_t thread = problem.requests[(*before)->front()].thread;
    for (const std::size_t request : *next) problem.requests[request].thread = thread;
    *before = next;
  }
}

}  // namespace stalloc::plan
