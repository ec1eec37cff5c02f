// SPDX-License-Identifier: Apache-2.0
// What each allocator would hold for the requests of one device, by simulation: for `compare` and `report`.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>

#include "plan/outcome.h"
#include "plan/plan.h"
#include "plan/problem.h"
#include "plan/simulate/simulate.h"
#include "tools/stalloc-plan/json.h"

namespace stalloc::tool {

struct Allocator {
  const char* key;   // in JSON
  const char* name;  // in the table
};
inline constexpr std::array<Allocator, 4> kAllocators = {{{"native", "PyTorch native"},
                                                          {"expandable", "PyTorch expandable segments"},
                                                          {"online", "stalloc without a plan"},
                                                          {"planned", "stalloc with a plan"}}};

struct Comparison {
  std::uint32_t device = 0;
  std::uint64_t requests = 0;          // requests that every allocator gets
  std::uint64_t outside_requests = 0;  // requests that no framework's allocator sees
  std::uint64_t outside_bytes = 0;     // the peak of their live bytes
  std::array<plan::Held, kAllocators.size()> held;
  plan::DevicePlan plan;  // of the last one
};

// Called after each request with the index of an allocator and the bytes that it holds.
using WatchAll = std::function<void(std::size_t allocator, std::size_t request, std::uint64_t held_bytes)>;

// `plan` is a sound plan for `all`; null: one is made for the requests that a framework's allocator gets. `granularity`
// is that of stalloc's pages in bytes; 0: the recorded device's, or the default. `watch` may be empty.
plan::Outcome<Comparison> compare(const plan::Problem& all, std::uint64_t granularity,
                                  const plan::DevicePlan* plan = nullptr, const WatchAll& watch = nullptr);

// Writes the members of a device's object.
void write_comparison(JsonWriter& json, const Comparison& comparison);

double held_per_live(const plan::Held& held);
double lost_share(const plan::Held& held);

}  // namespace stalloc::tool
