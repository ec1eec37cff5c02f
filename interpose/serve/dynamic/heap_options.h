// SPDX-License-Identifier: Apache-2.0
// What the dynamic sub-allocator may do.
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

// Told that what `Heap::free_when_over` freed is over: nothing uses it any more, and it is about to serve again.
// `owner` is what that function was given. Called with the heap's lock held; must neither call the heap nor throw.
using Over = void (*)(int device, CUdeviceptr address, StreamKey owner);

struct HeapOptions {
  bool dynamic = true;          // false: what the plan does not serve belongs to the original allocator
  bool plan_is_strict = false;  // a plan that is dropped ends the service: every later request is refused
  CrossStream cross_stream = plan::kDefaultCrossStream;
  plan::OnlinePolicy policy;
  // When dynamic requests need more memory than this beside the plan, they use free bytes of the plan.
  std::uint64_t beside_plan = std::uint64_t{16} << 20;
  // Told when a second stream uses memory, so that there is order to learn; may be null. Must outlive the heap.
  EventOrder* events = nullptr;
  Over over = nullptr;  // null: nobody is told
};

}  // namespace stalloc::serve
