// SPDX-License-Identifier: Apache-2.0
// Simulates what each allocator would hold for the requests of one device, for the commands `compare` and `report`.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "plan/expected.h"
#include "plan/plan.h"
#include "plan/problem.h"
#include "plan/simulate/simulate.h"
#include "tools/stalloc-plan/json.h"

namespace stalloc::tool {

struct Allocator {
  const char* key;   // its name in JSON
  const char* name;  // its name in the table
};
inline constexpr std::array<Allocator, 4> kAllocators = {{{"native", "PyTorch native"},
                                                          {"expandable", "PyTorch expandable segments"},
                                                          {"online", "stalloc without a plan"},
                                                          {"planned", "stalloc with a plan"}}};

struct Comparison {
  std::uint32_t device = 0;
  std::uint64_t requests = 0;          // requests to the framework's allocator, which are simulated
  std::uint64_t outside_requests = 0;  // requests that bypass it
  std::uint64_t outside_bytes = 0;     // the peak of the live bytes of those
  std::array<plan::PeakMemory, kAllocators.size()> memory;  // in the order of kAllocators
  plan::DevicePlan plan;                                    // the plan of the last allocator
};

// Called after each request with the index of the allocator in kAllocators and the bytes that it holds then.
using AllocatorObserver = std::function<void(std::size_t allocator, std::size_t request, std::uint64_t held_bytes)>;

// Simulates each allocator for the requests of `all` that a framework's allocator gets. `plan` is a sound plan for
// `all`; if it is null, a plan is made for those requests. `granularity` is the size of stalloc's pages in bytes; 0:
// that of the recorded device, or the default. `observer` may be empty. Error: the requests cannot be planned.
plan::Expected<Comparison> compare(const plan::Problem& all, std::uint64_t granularity,
                                   const plan::DevicePlan* plan = nullptr, const AllocatorObserver& observer = nullptr);

// Writes the members of a device's object.
void write_comparison(JsonWriter& json, const Comparison& comparison);

// Held bytes divided by live bytes; 1 if nothing was live.
double held_per_live(const plan::PeakMemory& memory);
// The share of the held bytes that nothing uses at the peak, from 0 to 1.
double lost_share(const plan::PeakMemory& memory);

}  // namespace stalloc::tool
