// SPDX-License-Identifier: Apache-2.0
// Reading and writing plan files (schemas/plan.fbs).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plan/expected.h"
#include "plan/plan.h"

namespace stalloc::plan {

inline constexpr std::uint16_t kPlanVersionMajor = 1;
inline constexpr std::uint16_t kPlanVersionMinor = 4;

// The largest file that is read or written, since offsets in a FlatBuffer have 31 bits, and the most views and devices
// in it.
inline constexpr std::uint64_t kMostPlanBytes = (std::uint64_t{1} << 31) - 1;
inline constexpr std::uint32_t kMostPlanTables = 1'000'000;
// The most ranges of physical bytes of which the slots of a device may consist. A server lists them all, 16 bytes each.
inline constexpr std::uint64_t kMostPlanRanges = std::uint64_t{1} << 26;

// Serializes `plan`. Never fails. Pre: the result has at most kMostPlanBytes (see `write_plan`).
std::vector<std::uint8_t> encode_plan(const Plan& plan);

// True if the bytes begin like a plan; the rest is not checked.
bool is_plan(std::span<const std::uint8_t> bytes);

// Verifies and decodes a plan. Refuses bytes that are not a plan, truncated plans, other major versions, a checksum
// that does not match (since version 1.3: any changed byte), and anything that would place a slot outside its view or a
// view outside the handles (see `find_defect`). Pure; touches no file; allocates O(size of the input).
Expected<Plan> decode_plan(std::span<const std::uint8_t> bytes);

// Names the first defect because of which `plan` cannot be served, whatever the trace is: handles that are not
// multiples of the granularity, a home view that does not map each handle once in order, handle or view indices out of
// range, slots that end outside their view or are not aligned to kUnitBytes, sums that overflow, more than
// kMostPlanRanges. Empty if there is none. Time O(n log n) in the size of the plan, however it is made up.
std::string find_defect(const Plan& plan);

// The same for files. Errors name the path. `read_plan` accepts only regular files, so that it never waits, and checks
// the beginning of a file before it reads the rest. `write_plan` replaces the file only when the new one is complete,
// and writes none that `read_plan` would refuse as too large; it returns the error, or an empty text when the plan is
// written. `most_bytes` is for tests.
Expected<Plan> read_plan(const std::string& path);
std::string write_plan(const Plan& plan, const std::string& path, std::uint64_t most_bytes = kMostPlanBytes);

}  // namespace stalloc::plan
