// SPDX-License-Identifier: Apache-2.0
// The options of a heap.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "plan/cross_stream.h"
#include "plan/online/online_policy.h"

namespace stalloc {
struct StreamKey;
}

namespace stalloc::serve {

using plan::CrossStream;

class EventOrder;

// Called when a free of `Heap::free_when_complete` is complete: no work uses the bytes any more, and they will be used
// again. `owner` is the argument of that function. Called with the heap's lock held: it must not call the heap and must
// not throw.
using FreeCompleteCallback = void (*)(int device, CUdeviceptr address, StreamKey owner);

// What log lines add where a plan is not used and `plan_is_strict` is set.
inline constexpr const char* kStrictPlanFails = "STALLOC_PLAN_STRICT=on makes all requests for device memory fail";

struct HeapOptions {
  bool dynamic = true;          // false: the original allocator serves every request without a slot
  bool plan_is_strict = false;  // true: once the plan is dropped, every later request fails; make_room never drops it
  CrossStream cross_stream = plan::kDefaultCrossStream;
  plan::OnlinePolicy policy;
  // When dynamic requests need more bytes than this beside the plan, they use free bytes of the plan.
  std::uint64_t max_bytes_beside_plan = std::uint64_t{16} << 20;
  // Tracks the program's events once a second stream uses memory. May be null. Must outlive the heap.
  EventOrder* events = nullptr;
  FreeCompleteCallback on_free_complete = nullptr;  // may be null
};

}  // namespace stalloc::serve
