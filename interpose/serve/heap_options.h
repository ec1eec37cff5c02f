// What the dynamic sub-allocator may do.
#pragma once

#include <cstdint>

#include "plan/online/online_policy.h"

namespace stalloc::serve {

using plan::CrossStream;

struct HeapOptions {
  bool dynamic = true;  // false: what the plan does not serve belongs to the original allocator
  CrossStream cross_stream = CrossStream::OrderThenGrow;
  plan::OnlinePolicy policy;
  // Dynamic requests use free bytes of the plan from where they would need more memory than this beside it.
  std::uint64_t beside_plan = std::uint64_t{16} << 20;
};

}  // namespace stalloc::serve
