// SPDX-License-Identifier: Apache-2.0
#include "plan/successive_threads.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "plan/files/checksum.h"

namespace stalloc::plan {
namespace {

using Requests = std::vector<std::size_t>;

auto key_of(const Request& request) {
  const std::uint64_t what = request.stack != 0 ? request.stack : round_up(request.size, kUnitBytes);
  return std::tuple(request.stack != 0, request.module, what, request.stream, request.allocation_stream);
}

std::uint64_t hash_of(const Problem& problem, const Requests& requests) {
  Checksum hash;
  hash.add_word(requests.size());
  for (const std::size_t request : requests) {
    std::apply([&hash](auto... parts) { (hash.add_word(parts), ...); }, key_of(problem.requests[request]));
  }
  return hash.value();
}

// Whether `next` begins after the end of `last` and makes the same requests.
bool succeeds(const Problem& problem, const Requests& next, const Requests& last) {
  const auto same = [&problem](std::size_t a, std::size_t b) {
    return key_of(problem.requests[a]) == key_of(problem.requests[b]);
  };
  return last.back() < next.front() && std::equal(last.begin(), last.end(), next.begin(), next.end(), same);
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
  // The latest of the threads that are one, by the hash of their requests.
  std::unordered_map<std::uint64_t, std::vector<const Requests*>> latest;
  for (const Requests* next : threads) {
    std::vector<const Requests*>& alike = latest[hash_of(problem, *next)];
    const auto before =
        std::find_if(alike.begin(), alike.end(), [&](const Requests* last) { return succeeds(problem, *next, *last); });
    if (before == alike.end()) {
      alike.push_back(next);
      continue;
    }
    const std::uint32_t thread = problem.requests[(*before)->front()].thread;
    for (const std::size_t request : *next) problem.requests[request].thread = thread;
    *before = next;
  }
}

}  // namespace stalloc::plan
