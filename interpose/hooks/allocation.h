// SPDX-License-Identifier: Apache-2.0
// A hooked request for memory, as the hooks pass it to a heap.
#pragma once

#include <cstddef>
#include <optional>

#include "interpose/hooks/call.h"
#include "interpose/serve/heap/heap.h"
#include "plan/files/trace_file.h"

namespace stalloc::hooks {

struct Allocation {
  trace::EventKind kind;        // Alloc (synchronous), AllocAsync or AllocFromPool
  std::size_t bytes;            // as requested
  StreamKey stream;             // the legacy stream for Alloc
  CUmemoryPool pool = nullptr;  // as the request names it, and after Heaps::resolve_pool as the heap knows it
};

// The stream that a call names at an entry point where stream 0 means `default_stream`.
inline StreamKey key_of(CUstream stream, DefaultStream default_stream) noexcept {
  return make_stream_key(stream, default_stream == DefaultStream::PerThread);
}

// Asks the heap to serve the request. Nothing: the heap declines, and the original allocator must serve it. Pre: the
// pool is resolved, and the heap's context is current.
inline std::optional<CUdeviceptr> serve_allocation(serve::Heap& heap, const Allocation& allocation) noexcept {
  if (allocation.kind == trace::EventKind::Alloc) return heap.allocate_sync(allocation.bytes);
  return heap.allocate(allocation.bytes, allocation.stream, allocation.pool);
}

// While an object lives, the heap has declined this thread's request. The driver's hook, which the runtime calls next,
// then does not ask the heap again, since that would count the request twice. Objects must not be nested.
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
