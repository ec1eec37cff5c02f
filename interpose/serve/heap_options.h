// What the dynamic sub-allocator may do.
#pragma once

#include <cstdint>

#include "plan/placement/online_policy.h"

namespace stalloc::serve {

// What a request may do about bytes that another stream freed and is not known to be done with. Bytes whose last use is
// complete are used at once, whatever this says.
enum class CrossStream : std::uint8_t {
  OrderThenGrow,  // wait for the other stream on the device (an event), create memory only when there is none: least
                  // memory
  GrowThenOrder,  // create memory, wait only when there is no more: least waiting
  Never,          // never wait for another stream
  Share,          // take the best place, whoever freed it, and wait for that stream, but for small requests: most
                  // waiting, and least mapping, since a program that repeats itself soon finds its places again
};

class EventOrder;

struct HeapOptions {
  bool dynamic = true;  // false: what the plan does not serve belongs to the original allocator
  CrossStream cross_stream = CrossStream::OrderThenGrow;
  plan::OnlinePolicy policy;
  // Dynamic requests use free bytes of the plan from where they would need more memory than this beside it.
  std::uint64_t beside_plan = std::uint64_t{16} << 20;
  // Told as soon as there is order between streams to learn; null: nobody. Must outlive the heap.
  EventOrder* events = nullptr;
};

}  // namespace stalloc::serve
