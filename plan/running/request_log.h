// SPDX-License-Identifier: Apache-2.0
// The latest requests of a running program, as the planner needs them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "plan/placement/stitched_view.h"
#include "plan/placement/units.h"
#include "plan/problem.h"

namespace stalloc::plan {

// Requests are named by numbers that grow from one request to the next; some numbers may be missing. Adding is cheap:
// what belongs together is found when the log is read. Takes 20 bytes for each request, 16 for each free, and 4 for
// each settled request. Not thread-safe. Functions that are not noexcept throw std::bad_alloc; the log must be cleared
// then.
class RequestLog {
 public:
  void clear() noexcept {
    sizes_.clear();
    requests_.clear();
    frees_.clear();
    settled_.clear();
  }
  // Pre: `bytes` is a multiple of kUnitBytes, and not 0; the number is higher than all before, or the latest one again:
  // that request was refused.
  void add(std::uint64_t number, std::uint64_t bytes, StreamIndex stream) {
    sizes_.push_back(static_cast<std::uint32_t>(bytes / kUnitBytes));
    requests_.push_back({number, stream});
  }
  // The request may be one that is not in the log. kAnyStream: nothing uses the bytes any more.
  void freed(std::uint64_t number, StreamIndex stream) {
    frees_.push_back({number, static_cast<std::uint32_t>(requests_.size()), stream});
  }
  // All frees so far are known to be complete when the next request is made.
  void note_settled() {
    if (!is_settled(size())) settled_.push_back(static_cast<std::uint32_t>(size()));
  }
  // Whether that was noted for a request.
  [[nodiscard]] bool is_settled(std::size_t request) const noexcept {
    return std::ranges::binary_search(settled_, request);
  }
  // How many requests were added, and their sizes in units of kUnitBytes.
  [[nodiscard]] std::size_t size() const noexcept { return requests_.size(); }
  [[nodiscard]] std::span<const std::uint32_t> sizes() const noexcept { return sizes_; }

  // The requests from the `begin`th on, as a problem of their own. O(n log n).
  [[nodiscard]] Problem problem(std::size_t begin, std::uint64_t page) const;

 private:
  struct LoggedRequest {
    std::uint64_t number = 0;
    StreamIndex stream = 0;
  };
  struct LoggedFree {
    std::uint64_t number = 0;
    std::uint32_t until = 0;  // the index of the first request after it
    StreamIndex stream = 0;
  };

  std::vector<std::uint32_t> sizes_;  // of requests_
  std::vector<LoggedRequest> requests_;
  std::vector<LoggedFree> frees_;
  std::vector<std::uint32_t> settled_;  // requests, in their order
};

}  // namespace stalloc::plan
