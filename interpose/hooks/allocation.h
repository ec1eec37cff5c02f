// SPDX-License-Identifier: Apache-2.0
// A hooked call for memory, as the hooks hand it to a heap.
#pragma once

#include <cstddef>
#include <optional>

#include "interpose/hooks/call.h"
#include "interpose/serve/heap/heap.h"
#include "plan/files/trace_file.h"

namespace stalloc::hooks {

struct Allocation {
  trace::EventKind kind;
  std::size_t bytes;
  StreamKey stream;
  CUmemoryPool pool = nullptr;  // that it names; once resolved, as the heap knows it
};

inline StreamKey key_of(CUstream stream, Default zero) noexcept {
  return make_stream_key(stream, zero == Default::PerThread);
}

inline std::optional<CUdeviceptr> serve_allocation(serve::Heap& heap, const Allocation& allocation) noexcept {
  if (allocation.kind == trace::EventKind::Alloc) return heap.allocate_sync(allocation.bytes);
  return heap.allocate(allocation.bytes, allocation.stream, allocation.pool);
}

// While it lives, the heap has declined this thread's request: the driver's hook, which the runtime calls next, does
// not ask the heap again, which would count the request twice.
class Declined {
 public:
  Declined() noexcept { declined_ = true; }
  ~Declined() { declined_ = false; }
  Declined(const Declined&) = delete;
  Declined& operator=(const Declined&) = delete;
  static bool by_heap() noexcept { return declined_; }

 private:
  static inline thread_local bool declined_ = false;
};

}  // namespace stalloc::hooks
