// SPDX-License-Identifier: Apache-2.0
// The planner's input: the requests of one device in the order in which the program made them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "plan/plan.h"

namespace stalloc::plan {

// Why a request gets no place in the plan. It stays in the sequence but takes no bytes. Those from Leaked on are served
// at run time as if the plan had no slot for them, and the others by the original allocator.
enum class PassReason : std::uint8_t {
  None,           // it is planned
  Empty,          // of 0 bytes, in a trace
  Captured,       // allocated or freed during stream capture: the memory belongs to a graph
  Exported,       // by IPC: another process may use it
  Communication,  // made by a communication library, which registers its buffers
  Probe,          // requested nearly all memory only to find out how much there is
  Leaked,         // made in every repetition and not freed for many
  Unordered,      // its free cannot be ordered before the next use of the bytes (see sequence.h)
  Varying,        // its size varies from step to step, and room for the largest would cost memory
  Left            // a planned place would be idle while others need memory (see dynamic_slots.h, beginning.h)
};
inline constexpr std::size_t kPassReasons = static_cast<std::size_t>(PassReason::Left) + 1;

// The planner numbers streams by their ordinals in the trace. kEveryStream stands for synchronous calls: memory of
// cudaMalloc may be used on any stream at once, and cudaFree is ordered after all work of the device.
inline constexpr std::uint32_t kEveryStream = std::numeric_limits<std::uint32_t>::max();
inline constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();  // a time: it does not come

// A request for memory, and its lifetime. Time is counted in requests.
struct Request {
  std::uint64_t id = 0;     // CSV: as in the file; trace: ordinal on this device
  std::uint64_t size = 0;   // bytes as requested
  std::uint64_t lower = 0;  // CSV: as in the file; trace: ordinal on this device
  std::uint64_t upper = 0;  // exclusive, in the same unit
  // Index into Problem::requests of the first request made after this one was freed; kNever: not freed.
  std::uint64_t until = kNever;
  std::uint32_t stream = 0;             // ordinal of the stream named by the call
  std::uint32_t allocation_stream = 0;  // `stream`, or kEveryStream
  std::uint32_t free_stream = 0;        // stream of the free, or kEveryStream; as allocation_stream when not freed
  std::uint32_t thread = 0;             // ordinal in the trace; see also successive_threads.h
  std::uint32_t stack = 0;              // ids as in the trace
  std::uint32_t module = 0;
  PassReason pass = PassReason::None;  // why it gets no place

  // Bytes that the plan must find for it.
  [[nodiscard]] std::uint64_t bytes() const { return pass == PassReason::None ? round_up(size, kUnitBytes) : 0; }
};

// All requests of one device, in the order in which the program made them.
struct Problem {
  std::uint32_t device = 0;
  std::uint64_t granularity = 0;  // of the device's physical memory, bytes; 0: not known
  bool repeats = false;           // a recorded run, whose steps may repeat; false: plan the whole range once
  std::vector<Request> requests;
  bool by_threads = false;  // an order in which each thread repeats its own requests (steps/thread_order.h)
};

// More than any device can address. A larger request or sum is an error, so that no sum overflows.
inline constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 48;

// Returns the sum of `bytes()` of live requests after each request. It ends with the first sum above kMostBytes, which
// only says that there is one. O(n). Pure.
std::vector<std::uint64_t> live_bytes(const Problem& problem);
// Returns the largest of these sums: the lower bound of any plan. O(n). Pure.
std::uint64_t peak_live_bytes(const Problem& problem);

// Whether a device can have served the requests: none of them, whoever serves it, is larger than kMostBytes, and
// peak_live_bytes is not above it. No sum of sizes overflows then. O(n). Pure.
bool fits_a_device(const Problem& problem);
inline constexpr const char* kFitsNoDevice = "the requests need more memory than any device has";

}  // namespace stalloc::plan
