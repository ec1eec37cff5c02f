// SPDX-License-Identifier: Apache-2.0
// Turns recorded events into requests with lifetimes.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/files/trace_file.h"
#include "plan/problem.h"

namespace stalloc::plan {

// The result of pairing a trace's events.
struct Lifetimes {
  std::vector<Problem> devices;     // in the order of their ordinals
  std::uint64_t unknown_frees = 0;  // frees of addresses that no recorded call returned
  std::uint64_t lost_frees = 0;     // addresses returned again without a recorded free
};

// True for an event that is one of the requests of its device: an allocation that succeeded and returned an address.
bool makes_request(const trace::Event& event);

// Pairs allocations and frees by address. Each device's requests are numbered in the order in which they were made;
// lifetimes count in these ordinals: [lower, upper) with lower the request's own, and upper the number of requests made
// before the free (all of them when it was never freed). Pure.
Lifetimes find_lifetimes(const trace::Trace& trace);

}  // namespace stalloc::plan
