// SPDX-License-Identifier: Apache-2.0
// The calls of a trace in order: allocations and frees of numbered tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/files/trace_file.h"

namespace stalloc::replay {

struct Tensor {
  std::uint64_t bytes = 0;
  std::uint64_t request = 0;  // ordinal on its device, as in a plan
  std::uint32_t device = 0;
  std::uint32_t stream = 0;  // ordinal, of the allocation
  bool plain = false;        // by cuMemAlloc
};

struct ScheduledCall {
  trace::EventKind kind = trace::EventKind::Alloc;
  std::uint32_t tensor = 0;  // index into Schedule::tensors
  std::uint32_t stream = 0;
  std::uint32_t thread = 0;
};

struct Schedule {
  std::vector<Tensor> tensors;
  std::vector<ScheduledCall> calls;
  std::uint32_t devices = 0;  // one more than the highest ordinal; so too streams and threads
  std::uint32_t streams = 0;
  std::uint32_t threads = 0;
  std::uint64_t skipped =
      0;  // recorded calls that failed, were captured or were probes, and frees of unknown addresses
};

// `steps` 0: all of the trace; else it stops after that many repetitions of the first device's steady step (and does
// not stop when the trace has fewer).
Schedule make_schedule(const trace::Trace& trace, std::size_t steps);

}  // namespace stalloc::replay
