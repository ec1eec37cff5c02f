// SPDX-License-Identifier: Apache-2.0
#include "plan/files/content_hash.h"

#include <map>
#include <utility>

#include "plan/files/checksum.h"

namespace stalloc::plan {

std::uint64_t content_hash(const Problem& problem) {
  Checksum sum;
  const std::uint64_t head[] = {problem.granularity, problem.repeats ? 1U : 0U, problem.requests.size()};
  sum.add(head, sizeof head);
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> sites;
  std::map<std::uint32_t, std::uint64_t> threads;
  for (const Request& request : problem.requests) {
    const auto site = sites.try_emplace({request.module, request.stack}, sites.size()).first->second;
    const auto thread = threads.try_emplace(request.thread, threads.size()).first->second;
    const std::uint64_t fields[] = {request.id,
                                    request.size,
                                    request.lower,
                                    request.upper,
                                    request.until,
                                    request.stream,
                                    request.allocation_stream,
                                    request.free_stream,
                                    site,
                                    thread,
                                    static_cast<std::uint64_t>(request.pass)};
    sum.add(fields, sizeof fields);
  }
  return sum.value();
}

}  // namespace stalloc::plan
