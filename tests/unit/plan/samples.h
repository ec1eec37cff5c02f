// SPDX-License-Identifier: Apache-2.0
// Traces, problems and plans made up for the planner's tests.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "plan/files/trace_file.h"
#include "plan/plan.h"
#include "plan/problem.h"

namespace stalloc::test {

// Records calls as the interposer would. Addresses are made up: each live allocation has its own.
class TraceBuilder {
 public:
  using Id = std::size_t;  // of an allocation

  explicit TraceBuilder(std::uint64_t total_bytes = std::uint64_t{141} << 30) {
    trace_.process = {"stalloc test", 4711, "3", "host", "train \"quoted\"", 1'700'000'000'000'000'000};
    trace_.devices.push_back({0, "Test device", total_bytes, std::uint64_t{2} << 20});
    trace_.closed = true;
  }

  // What the next calls have in common.
  std::uint32_t stream = 1;
  std::uint32_t thread = 0;
  std::uint32_t module = 0;
  std::uint16_t device = 0;
  std::uint8_t flags = 0;

  Id alloc(std::uint64_t size, trace::EventKind kind = trace::EventKind::AllocAsync) {
    addresses_.push_back((std::uint64_t{0x7f} << 40) + addresses_.size() * (std::uint64_t{1} << 36));
    add(kind, addresses_.back(), size);
    return addresses_.size() - 1;
  }
  Id alloc_sync(std::uint64_t size) { return alloc(size, trace::EventKind::Alloc); }
  void fail(std::uint64_t size) {
    flags |= static_cast<std::uint8_t>(tracefb::EventFlags::Failed);
    add(trace::EventKind::AllocAsync, 0, size);
    flags &= static_cast<std::uint8_t>(~static_cast<unsigned>(tracefb::EventFlags::Failed));
  }
  void free(Id id) { add(trace::EventKind::FreeAsync, addresses_[id], 0); }
  void free_sync(Id id) { add(trace::EventKind::Free, addresses_[id], 0); }
  void free_address(std::uint64_t address) { add(trace::EventKind::FreeAsync, address, 0); }
  void share(Id id, std::uint64_t offset = 0) { add(trace::EventKind::IpcExport, addresses_[id] + offset, 0); }
  [[nodiscard]] std::uint64_t address(Id id) const { return addresses_[id]; }
  // As if a later allocation got the address of an earlier one.
  void move(Id id, std::uint64_t address) { addresses_[id] = address; }

  void add(trace::EventKind kind, std::uint64_t address, std::uint64_t size) {
    trace_.events.emplace_back(trace_.events.size(), address, size, stream, thread, 0, module, device, kind, flags);
  }
  trace::Trace& trace() { return trace_; }

 private:
  trace::Trace trace_;
  std::vector<std::uint64_t> addresses_;
};

// The trace as the recorder would write it, `events_per_chunk` events in each chunk.
std::vector<std::uint8_t> encode_trace(const trace::Trace& trace, std::size_t events_per_chunk);

// True when both say the same of the run (how many chunks it was cut into does not matter).
bool same_content(const trace::Trace& a, const trace::Trace& b);

// A small training loop: parameters, a first step that differs, `steps` equal ones of `microbatches` equal parts, an
// optimizer, an end. `seed` chooses the sizes. Some requests live across the end of a step.
trace::Trace training_trace(std::uint32_t seed, int steps, int microbatches);

// Steps of `tensors` tensors of different sizes, each of which is freed when the next one was made. In each step but
// the last, another one is freed half a step later. Pre: steps <= tensors.
trace::Trace late_trace(int steps, int tensors);

// A small plan with a stitched view, a body and a wait.
plan::Plan sample_plan();

}  // namespace stalloc::test
